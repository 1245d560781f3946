"""What the server writes, in a language in which every message is marked: no word comes from elsewhere."""

import re
from html.parser import HTMLParser

import pytest

from specdemo.ui.page.frame import frame
from specdemo.ui.view.feed import RunFeed
from specdemo.ui.view.kept import RECORDINGS, recorded_trace
from specdemo.words.catalogue import catalogue

NAMES = {"aria-label", "title", "placeholder", "alt"}
OTHERS = {"English", "Deutsch"}  # each language by its own name


def marked(part):
    return {key: marked(one) for key, one in part.items()} if isinstance(part, dict) else f"⟦{part}⟧"


def unmarked(text: str) -> str:
    before = None
    while before != text:
        before, text = text, re.sub("⟦[^⟦⟧]*⟧", " ", text)
    return " ".join(word for word in re.findall(r"[^\W\d_]{3,}", text) if word not in OTHERS)


@pytest.fixture(autouse=True)
def pseudo(monkeypatch):
    said = marked(catalogue("en"))
    monkeypatch.setattr("specdemo.words.catalogue.catalogue", lambda tag: said)


class Written(HTMLParser):
    """Texts and names in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.within = ""  # the tag whose words are the same in all languages

    def handle_starttag(self, tag, attrs):
        self.within = self.within or (tag if ("translate", "no") in attrs else "")
        self.found += [value or "" for name, value in attrs if name in NAMES]

    def handle_endtag(self, tag):
        self.within = "" if tag == self.within else self.within

    def handle_data(self, data):
        if not self.within:
            self.found.append(data)


def test_the_frame_of_the_page_has_no_words_of_its_own():
    page = Written()
    page.feed(frame(0))
    assert len(page.found) > 50
    assert unmarked("\n".join(page.found)) == ""


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_is_told_of_a_run_is_in_the_catalogue(name):
    told = RunFeed(recorded_trace(name), recorded=True).snapshot()
    assert told["verdict"].startswith("⟦") or told["verdict"] == ""
    assert unmarked(told["verdict"]) == ""
    assert {key: value for key, value in told["numbers"].items() if unmarked(value)} == {}
    rule = told["setting"]["rule"]
    assert unmarked("\n".join(rule[part] for part in ("meaning", "recorded", "about"))) == ""
