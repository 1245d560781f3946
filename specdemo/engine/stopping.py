"""Where a text ends."""

from specdemo.events import Finish


class StopCriteria:
    """Is given each emitted token, in order, and says whether the text ends with it, and why: eos before stop
    before length.

    eos: ids that end a text. stops: strings that end it. room: how many tokens the text may still get, at
    least 1."""

    def __init__(self, eos: frozenset[int], stops: tuple[str, ...], room: int):
        self.eos = eos
        self.stops = stops
        self.room = room
        self.finish: Finish | None = None
        self._tail = ""  # the last characters, as many as a stop string that began before this token can need

    def add(self, token_id: int, piece: str) -> Finish | None:
        self.room -= 1
        self._tail = self._tail[-max(map(len, self.stops), default=1) :] + piece
        if token_id in self.eos:
            self.finish = "eos"
        elif any(stop in self._tail for stop in self.stops):
            self.finish = "stop"
        elif self.room == 0:
            self.finish = "length"
        return self.finish
