"""What a view of the page costs the server. Gradio deep-copies its config for each `GET /` and `/config`."""

import gc
import types

import pytest

from specdemo.ui.page import page
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.runs.models import Models
from specdemo.ui.runs.queue import RunQueue


def reached(root: object) -> dict[str, int]:
    """How many objects of each type copy.deepcopy would come to: it copies all but functions, classes and
    modules, and of a bound method the object that it is bound to."""
    seen, todo, found = set(), [root], {}
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(one))
        name = f"{type(one).__module__}.{type(one).__name__}"
        found[name] = found.get(name, 0) + 1
        todo += gc.get_referents(one)
    return found


@pytest.mark.slow
def test_nothing_that_is_copied_for_a_view_reaches_a_model_or_an_object_of_ours():
    models = Models({"device": "cpu"}, LOCAL)
    models.get()
    config = page.build_page(models, RunQueue(LOCAL), LOCAL).get_config_file()
    for part in ("components", "dependencies", "layout"):
        found = reached(config[part])
        assert found["builtins.dict"] > 10, "it has been walked"
        ours = {name for name in found if name.startswith(("specdemo.", "torch.", "transformers."))}
        assert not ours, ours
