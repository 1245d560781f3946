"""What a view of the page costs the server. Gradio deep-copies its config for each `GET /` and `/config`."""

import gc
import types

import pytest

from specdemo.ui.page import page
from specdemo.ui.runs.limits import LOCAL
from specdemo.ui.runs.models import Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.view.words import say, speaking


@pytest.fixture(scope="module")
def demo():
    models = Models({"device": "cpu"}, LOCAL)
    models.get()
    return page.build_page(models, RunQueue(LOCAL), LOCAL)


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
@pytest.mark.parametrize("part", ["components", "dependencies", "layout"])
def test_nothing_that_is_copied_for_a_view_reaches_a_model_or_an_object_of_ours(demo, part):
    found = reached(demo.get_config_file()[part])
    assert found["builtins.dict"] > 10, "it has been walked"
    ours = {name for name in found if name.startswith(("specdemo.", "torch.", "transformers."))}
    assert not ours, ours


def test_a_view_in_german_is_the_same_page_in_other_words(demo):
    english = demo.config
    with speaking("de"):
        german = demo.config
        assert german["title"] == say("page.title") != english["title"]
    for part in ("dependencies", "layout"):
        assert german[part] is english[part]
    pairs = list(zip(english["components"], german["components"], strict=True))
    labels = {one["props"].get("label"): other["props"].get("label") for one, other in pairs}
    assert labels["Temperature"] == "Temperatur" and labels["Prompt"] == "Prompt"
    buttons = {
        one["props"]["value"]: other["props"]["value"] for one, other in pairs if one["type"] == "button"
    }
    assert buttons["Generate"] == "Erzeugen" and buttons["Stop"] == "Stopp"
    differing = set()
    for one, other in pairs:
        assert {key: one[key] for key in one if key != "props"} == {
            key: other[key] for key in one if key != "props"
        }
        differing |= {name for name, value in other["props"].items() if value != one["props"].get(name)}
        if choices := one["props"].get("choices"):
            assert [value for _, value in choices] == [value for _, value in other["props"]["choices"]]
    assert differing == set(page.PROPERTIES)
    assert demo.config["title"] == english["title"], "it is English again"
