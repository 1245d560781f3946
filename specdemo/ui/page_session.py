"""What the server remembers about one open page. Without Gradio."""

from dataclasses import dataclass

from specdemo.events import Params
from specdemo.session import Run
from specdemo.ui.feed import RunFeed
from specdemo.ui.numbers import later_number
from specdemo.ui.wire import Measurement


@dataclass(frozen=True)
class Kept:
    """What the stage shows when nothing goes on there: the names of its update and its file on the shelf.
    own: no other page shows it."""

    update: str
    file: str
    params: Params
    own: bool


class PageSession:
    """What the server remembers about one open page: what its stage shows, and the run that goes on there."""

    def __init__(self) -> None:
        self.number = later_number()  # than what the page may have from a session that was dropped
        self.knows_stage = False  # the page was opened with this session, or has begun a run in it
        self.address = ""  # that its latest run was asked for from
        self.feed: RunFeed | None = None  # a run that goes on
        self.run: Run | None = None
        self.kept: Kept | None = None  # a run that has ended, or an opened trace
        self.before: Kept | None = None  # what the stage showed, until something new is there
        self.waiting = False  # for a run to begin
        self.measuring: object | None = None  # which measurement goes on
        self.measurement: Measurement | None = None  # the latest of it
        self.runs_link = False  # the page's address asks for a run that has not been asked for yet
        self.note = ""  # about the page's address, for the next run's notice
        self.pair: str | None = None  # the visitor's own choice, while an example has set another pair

    def __deepcopy__(self, _: object) -> "PageSession":
        """Gradio copies the first one for each page."""
        return PageSession()

    def begin(self) -> int:
        """Makes room on the stage for something new, and returns its number. Messages with an older number
        are ignored."""
        self.number, self.knows_stage = later_number(), True
        self.before, self.kept = self.kept or self.before, None
        self.feed, self.run, self.waiting = None, None, False
        return self.number

    def restore(self) -> None:
        """Nothing new has come, so the stage shows again what was there before."""
        self.kept, self.before = self.kept or self.before, None
