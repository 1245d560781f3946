"""Two methods, of which the first that has a draft gives it."""

from specdemo.drafters.row import Method


def chained(first: Method, second: Method) -> Method:
    """The row of a method that copies from the text and, where it finds nothing, drafts as another one."""
    return Method(
        f"{first.name}+{second.name}",
        f"{first.label}, else {second.label}",
        f"{first.sentence}; where that finds nothing, {second.sentence}",
        fields=tuple(one for one in dict.fromkeys((*first.fields, *second.fields)) if one != "tree"),
        needs_drafter=second.needs_drafter,
        is_usual=second.is_usual,
        takes_the=False,
        menu_label=f"{first.menu_label or first.label}, else {second.menu_label or second.label}",
        manner=first.manner,
    )
