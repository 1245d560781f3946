"""Halls: how those who play a game by one link do, without their names. In memory only. Without Gradio.

A hall is open from when its lecturer opens it until its life ends. Whoever knows its code may read its
counts. The server counts what it has judged itself: the first game of each page, round after round.
"""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypedDict

from specdemo.ui.runs.guess import GuessRequest
from specdemo.ui.runs.limits import Limits, Shares
from specdemo.ui.view.wire import Game, Measurement
from specdemo.words.catalogue import say

UNSEEN_SECONDS = 10  # after which nobody looks at a hall; the page asks every two


@dataclass
class Play:
    """What one page has played in its first game. text: the hash of its token ids so far, which the next
    round continues. over: whether the page has begun another game."""

    tokens: int = 0
    of_drafter: int = 0
    rounds: int = 0
    text: int = hash(())
    over: bool = False


@dataclass
class Hall:
    """A hall. game: the name of what is played in it. address: where it was opened from. looked: when its
    counts were last asked for."""

    game: str
    address: str
    opened: float
    looked: float
    plays: dict[str, Play] = field(default_factory=dict)  # by session


class HallCounts(TypedDict):
    """players: each one's tokens a round, the least first. hall and drafter: the tokens of all counted
    rounds, and of the drafter's drafts at the same places, each divided by the rounds; None where nobody
    has played."""

    players: list[float]
    hall: float | None
    drafter: float | None


class Halls:
    """The open halls of a server, by their codes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.halls: dict[str, Hall] = {}  # the first opened one first

    def open(self, game: str, address: str) -> str | None:
        """Opens a hall and returns its code; None where the server or the address has too many. An address
        that has too many loses the first in which nobody has played and which nobody looks at. Where all
        addresses have too many together, the one with the most loses its first."""
        self._end()
        now = time.monotonic()
        owners = {code: hall.address for code, hall in self.halls.items()}
        held = Shares(owners.values())
        first: str | None = None  # that is closed for it
        if held[address] >= self.limits.halls_of_address:
            idle = (
                code
                for code, hall in self.halls.items()
                if hall.address == address and not hall.plays and hall.looked < now - UNSEEN_SECONDS
            )
            if (first := next(idle, None)) is None:
                return None
        elif len(owners) >= self.limits.halls and (first := held.to_go(owners, newcomer=address)) is None:
            return None
        if first:
            del self.halls[first]
        code = secrets.token_hex(16)
        self.halls[code] = Hall(game, address, opened=now, looked=now)
        return code

    def get(self, code: str) -> Hall | None:
        """The hall of this code, if it is open."""
        self._end()
        return self.halls.get(code)

    def counts(self, code: str) -> HallCounts | None:
        """The counts of the hall; None if it is not open."""
        if (hall := self.get(code)) is None:
            return None
        hall.looked = time.monotonic()
        plays = [play for play in hall.plays.values() if play.rounds]
        rounds = sum(play.rounds for play in plays)
        return {
            "players": sorted(play.tokens / play.rounds for play in plays),
            "hall": sum(play.tokens for play in plays) / rounds if rounds else None,
            "drafter": sum(play.of_drafter for play in plays) / rounds if rounds else None,
        }

    def count(self, session: str, request: GuessRequest, game: Game) -> str:
        """Counts a round that was judged, if it goes on where the page's first game in this hall stands.
        Returns the sentence for a player whose round is not counted."""
        hall = self.get(request.hall)
        if hall is None or game["name"] != hall.game:
            return say("guess.hall.shut")
        if session not in hall.plays and len(hall.plays) >= self.limits.plays_of_hall:
            return say("guess.hall.full")
        play = hall.plays.get(session, Play())
        if "guessed" not in game or "drafted" not in game:  # the opening
            play.over = play.rounds > 0
        if play.over:
            return say("guess.hall.again")
        if "guessed" not in game or "drafted" not in game:
            return ""
        if (play.rounds, play.text) != (request.index, hash(request.output_ids)):
            return say("guess.hall.apart")
        written = game["guessed"]["emitted"]
        play.tokens += len(written)
        play.of_drafter += len(game["drafted"]["emitted"])
        play.rounds += 1
        play.text = hash((*request.output_ids, *written))
        hall.plays[session] = play
        return ""

    async def counted(
        self, session: str, request: GuessRequest, reports: AsyncIterator[Measurement]
    ) -> AsyncIterator[Measurement]:
        """The reports of a round, which is counted at its end."""
        async with aclosing(reports) as told:  # type: ignore[type-var]
            async for report in told:
                if report["state"] == "ended" and "guess" in report:
                    report = report | {"text": self.count(session, request, report["guess"])}
                yield report

    def _end(self) -> None:
        """Forgets the halls whose life has ended."""
        oldest = time.monotonic() - self.limits.hall_seconds
        self.halls = {code: hall for code, hall in self.halls.items() if hall.opened > oldest}
