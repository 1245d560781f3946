"""The frame of the page, which Gradio reads as a template, and the scripts and styles that rely on it."""

import re
import shutil

from specdemo.ui.page.frame import STATIC, frame, loader, scripts_path


def test_nothing_in_it_is_a_template():
    assert not re.search(r"\$\{|\{\{|`|\\", frame(2**20))


def test_the_address_of_the_scripts_changes_with_each_of_them(tmp_path, monkeypatch):
    copy = shutil.copytree(STATIC, tmp_path / "static")
    monkeypatch.setattr("specdemo.ui.page.frame.STATIC", copy)
    before = scripts_path()
    assert before == scripts_path() and f"{before}/" in loader()
    (copy / "view" / "format.js").write_text("// changed", encoding="utf-8")
    assert scripts_path() != before


def test_scripts_write_no_markup_and_each_is_more_than_types():
    """Text goes in as text nodes, by `h` of dom.js."""
    for script in STATIC.glob("*/*.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|parseFromString", text), script.name
        assert re.search(r"^export (?:async )?(?:function|class|const) ", text, re.M), script.name


def test_scripts_pass_no_list_as_the_arguments_of_a_call():
    """A call fails from about 120,000 arguments on."""
    spread = re.compile(r"(?<!function )\b\w+\((?:[^()\[\]{}\n]*,\s*)?\.\.\.\w+")
    for script in STATIC.glob("*/*.js"):
        assert spread.findall(script.read_text(encoding="utf-8")) == [], script.name
