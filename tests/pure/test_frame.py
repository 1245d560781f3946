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


def test_scripts_write_no_data_as_markup():
    written = re.compile(r"(?:innerHTML|outerHTML|insertAdjacentHTML)\W+(.*)")
    for script in STATIC.glob("*/*.js"):
        for value in written.findall(script.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[A-Z]+;|(markup|tableMarkup)\(\);", value), (
                f"{script.name}: only constants and words may be markup, not {value}"
            )


def test_markup_has_nothing_in_it_but_words():
    """And only the escaped ones of words.js."""
    word = r"(?:escaped\(say|words)\(\"[\w.]+\"\)+"
    own = rf"\$\{{({word}|formulas\(\)|columns\(\)|SPEEDS\.map\(option\)\.join\(\"\"\)|[A-Z_]+)\}}"
    found = 0
    for script in STATIC.glob("*/*.js"):
        text = script.read_text(encoding="utf-8")
        for template in re.findall(r"^const (?:markup|tableMarkup) = \(\) => `(.*?)`;", text, re.M | re.S):
            found += 1
            assert "${" not in re.sub(own, "", template), script.name
    assert found >= 9


def test_scripts_pass_no_list_as_the_arguments_of_a_call():
    """A call fails from about 120,000 arguments on."""
    spread = re.compile(r"(?<!function )\b\w+\((?:[^()\[\]{}\n]*,\s*)?\.\.\.\w+")
    for script in STATIC.glob("*/*.js"):
        assert spread.findall(script.read_text(encoding="utf-8")) == [], script.name
