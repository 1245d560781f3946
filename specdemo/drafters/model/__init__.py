"""A smaller model, with the target's tokenizer or another one."""

from specdemo.drafters.row import BY_MODEL, DrafterKind, Method

METHOD = Method(
    "model",
    "drafter model",
    "a smaller model or a head writes the drafts",
    fields=(*BY_MODEL, "tree"),
    is_by_drafter=True,
    needs_drafter=True,
    menu_label="the pair's drafter",
)
KIND = DrafterKind(
    "model",
    "drafter model",
    "chain",
    "A smaller model drafts one token after another, a forward for each.",
    drafts_trees=True,
)
