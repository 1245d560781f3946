"""A run in a notebook cell: whatever a model has written, the frame holds the file to the letter."""

from html.parser import HTMLParser

from specdemo.ui.page.alone import show
from tests.pure.test_feed import ROUNDS, trace


def test_the_frame_in_a_cell_holds_the_whole_file():
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    cell = show(trace(*ROUNDS, finish="length"))
    parser.feed(cell.html)
    [(tag, attributes)] = tags
    assert tag == "iframe" and attributes["srcdoc"] == cell.file
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
