"""What can be called on the page and by the API, as Gradio knows it."""

from typing import TYPE_CHECKING, Any

from specdemo.ui.checks import Field, Function, Kind
from specdemo.ui.tools import ENDPOINTS

if TYPE_CHECKING:
    from gradio import Blocks

KINDS: dict[str, Kind] = {
    "textbox": "text",
    "slider": "number",
    "number": "number",
    "checkbox": "switch",
    "dropdown": "choice",
    "dataset": "index",
}


def functions_of(demo: "Blocks") -> dict[int, Function]:
    """What can be called, by Gradio's numbers."""
    documented = demo.get_api_info()["named_endpoints"]
    found = {}
    for number, function in demo.fns.items():
        if function.cancels:  # the browser asks for /cancel instead
            continue
        private = function.api_visibility == "private"
        name = str(function.api_name)
        if name in ENDPOINTS.values():  # the tools' server calls them, in this process
            continue
        if private:
            fields = tuple(_field(block) for block in function.inputs)
        else:
            parameters = documented[f"/{name}"]["parameters"]
            fields = tuple(
                Field(one["parameter_name"], required=not one["parameter_has_default"]) for one in parameters
            )
        found[number] = Function(number, name, fields, direct=not function.queue, private=private)
    return found


def _field(block: Any) -> Field:
    name = block.get_block_name()
    choices = tuple(value for _, value in getattr(block, "choices", None) or ())
    label = (getattr(block, "label", None) or "The value").split(":")[0]
    return Field(label, KINDS.get(name, "anything"), choices, len(getattr(block, "samples", None) or ()))
