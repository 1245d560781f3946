"""Be the drafter: one round of a game in which the visitor drafts, and the halls that count those who play it
by one link. Without Gradio.

The client holds the game: the token ids of the text so far and the number of its round. The server keeps
nothing; each guess is a round by itself (`one_round` in session.py), and the same guesses get the same
verdicts from everybody who plays with the same settings and seed. At the same places, with the same dice, the
chosen drafter's own draft of as many tokens is judged as well.

A hall is open from when its lecturer opens it until its life ends, in memory only and without names. Whoever
knows its code may read its counts. Of a game the server counts what it has judged itself: the first game of
each page, round after round. Of an exercise it counts the first answer of each page.
"""

import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from specdemo.engine.emit import INCOMPLETE, Pieces
from specdemo.errors import PairError
from specdemo.events import Params, Round, Started, check_prompt
from specdemo.events.params import check_text
from specdemo.events.trace import Trace
from specdemo.loading.pair import AnyPair, Pair
from specdemo.session import one_round, prepare
from specdemo.ui.runs.limits import Holdings, Limits
from specdemo.ui.runs.queue import Ticket
from specdemo.ui.runs.run import MeasurementRequest, pair_here
from specdemo.ui.view.feed import prompt_tokens, rounds_to_draw, setting
from specdemo.words.catalogue import say
from specdemo.words.message import message, refusal, shown

LONGEST_GUESS = 500  # characters
HALL = re.compile("[0-9a-f]{32}")  # a hall's code
IDS = re.compile(r"([0-9]{1,9}(,[0-9]{1,9})*)?", re.ASCII)
SUGGESTED, OF_THE_DRAFTER = 4, 2  # words that can be picked, and how many of them are the drafter's likeliest
LIKELY = 16  # tokens among which they are chosen
BEHIND = 16  # tokens of the text that a guess is tokenised behind
UNSEEN_SECONDS = 10  # after which nobody looks at a hall; the page asks every two


class GuessRequest(MeasurementRequest):
    """A round of a game. output_ids: the token ids of the text after the prompt. text: what the visitor
    drafts; empty for the game's opening. game: what the client was told as the name of the game; empty for
    the opening. hall: the code of the hall that counts it; empty where none does."""

    period = None

    def __post_init__(self) -> None:
        wanted, params = self.wanted, self.params
        check_prompt(self.prompt)
        if params.draft_with == "none":
            raise ValueError(message("nobody_beside"))
        gamma = Params().gamma if params.gamma == "auto" else params.gamma
        seed = params.seed if wanted.get("seed") is None else wanted["seed"]
        # A visitor's words are one guess at each place.
        self.params = params = replace(params, gamma=gamma, seed=seed, tree=())
        written, index = wanted.get("ids") or "", wanted.get("round") or 0
        text, game, hall = (wanted.get(name) or "" for name in ("guess", "game", "hall"))
        if not isinstance(written, str) or not IDS.fullmatch(written):
            raise ValueError(f"ids must be token ids with commas between them, not {ascii(written)[:60]}")
        ids = tuple(map(int, written.split(","))) if written else ()
        if len(ids) > params.max_new_tokens:
            raise ValueError(f"ids must be at most {params.max_new_tokens:,}, not {len(ids):,}")
        if type(index) is not int or not 0 <= index <= len(ids) or (index == 0) != (not ids):
            number = "the number of the rounds before, at least one token each"
            raise ValueError(f"round must be {number}, not {ascii(index)[:60]}")
        if not isinstance(game, str) or not isinstance(text, str):
            raise ValueError("guess and game must be texts")
        if game and not text.strip():
            raise ValueError(message("guess_empty"))
        check_text("guess", text)
        if len(text) > LONGEST_GUESS:
            raise ValueError(message("guess_long", most=LONGEST_GUESS, length=len(text)))
        if not game and (ids or text):
            raise ValueError("game must be the name that the server gave this game")
        if not isinstance(hall, str) or (hall and not HALL.fullmatch(hall)):
            raise ValueError(refusal("hall", "hall", hall))
        self.output_ids, self.index, self.text, self.game, self.hall = ids, index, text, game, hall

    def work(self, ticket: Ticket, *pairs: AnyPair) -> Iterator[dict[str, Any]]:
        if game := game_after(pairs[0], self, lambda: ticket.is_over):
            yield {"guess": game, "share": 1.0}


def game_after(
    pair: AnyPair, request: GuessRequest, is_over: Callable[[], bool] = lambda: False
) -> dict[str, Any] | None:
    """The game after the round that is asked for; None if is_over was true before."""
    pair = pair_here(pair, "guess")
    if pair.tokenizer is None:
        raise PairError(message("guess_no_tokenizer"))
    started = prepare(pair, request.prompt, request.params)
    params, ids, index = started.params, [*request.output_ids], request.index
    if any(one >= pair.known_ids for one in ids):
        raise ValueError(f"ids must hold token ids, whole numbers from 0 to {pair.known_ids - 1}")
    assert params.seed is not None and params.gamma != "auto", "the request has set them"
    game: dict[str, Any] = {
        "name": name_of(started),
        "seed": params.seed,
        "most": params.gamma,
        "link": request.link(pair.info.name, params),
        "suggestions": [],
        "finish": None,
    }
    if not request.game:
        game["prompt"] = prompt_tokens(Trace.begin(started), pair.texts_of)
        game["setting"] = setting(Trace.begin(started))
    elif request.game != game["name"]:
        raise ValueError(message("other_game"))
    else:
        guessed = tokens_of_guess(pair, [*started.prompt_ids, *ids], request.text)[: params.gamma]
        alike = replace(started, params=replace(params, gamma=len(guessed)))
        found = one_round(pair, started, ids, index, guessed, is_over)
        beside = one_round(pair, alike, ids, index, is_over=is_over)
        if found is None or beside is None:
            return None
        played, game["finish"] = found
        game["guessed"], game["drafted"] = rounds_to_draw([played, beside[0]])
        ids, index = [*ids, *played.emitted], index + 1
    if game["finish"] is None:
        wide = replace(started, params=replace(params, gamma=1, alternatives=LIKELY))
        if (ahead := one_round(pair, wide, ids, index, is_over=is_over)) is None:
            return None
        game["suggestions"] = suggestions(ahead[0], Random(f"specdemo guess {params.seed} {index}"))
    return game


def name_of(started: Started) -> str:
    """A game's name, which is the same for the same pair, prompt, settings and seed."""
    told = (started.pair.name, started.prompt_ids, started.params)
    return sha256(repr(told).encode()).hexdigest()[:16]


def tokens_of_guess(pair: Pair, text_ids: Sequence[int], guess: str) -> list[int]:
    """The guess as tokens that follow the text and write nothing but the guess. Raises ValueError where there
    are none."""
    before = Pieces(pair.tokenizer)
    context = "".join(map(before.push, text_ids[-BEHIND:]))

    # The guess is encoded behind the text, behind a line's end if the text's last token would grow by it, and
    # by itself.
    for start in (context, "\n", ""):
        known, all_ids = _encoded(pair, start), _encoded(pair, start + guess)
        ids = all_ids[len(known) :]
        if ids and all_ids[: len(known)] == known and "".join(before.of(ids)) == guess:
            return ids
    raise ValueError(message("guess_unwritable", given=shown(guess)))


def _encoded(pair: Pair, text: str) -> list[int]:
    assert pair.tokenizer is not None
    return pair.tokenizer(text, add_special_tokens=False).input_ids


def suggestions(ahead: Round, random: Random) -> list[str]:
    """Words for the place that the round begins with, in an order that tells nothing: the drafter's likeliest
    ones, and others that the target finds likely."""
    first = ahead.draft[0] if ahead.draft else ahead.next
    rows = [row for row in (first.top if first else ()) if row[1].strip() and INCOMPLETE not in row[1]]
    if first and first.allowed is not None:  # what the grammar forbids has p = 0
        rows = [row for row in rows if row[2]]
    # Each row is (id, text, p, q, raw_p, raw_q).
    by_drafter = sorted((row for row in rows if row[5]), key=lambda row: -(row[5] or 0.0))[:OF_THE_DRAFTER]
    by_target = sorted(rows, key=lambda row: -(row[4] or 0.0))
    chosen = list(dict.fromkeys(row[1] for row in (*by_drafter, *by_target)))[:SUGGESTED]
    random.shuffle(chosen)
    return chosen


@dataclass
class Play:
    """What one page has played in its first game. text: the hash of its token ids so far, which the next
    round continues. over: whether the page has begun another game."""

    tokens: int = 0
    of_drafter: int = 0
    rounds: int = 0
    text: int = hash(())
    over: bool = False


Words = Annotated[str, Field(max_length=1_000)]


class Exercise(BaseModel):
    """A question with its choices, as the page made it. rows: of a table. right: the number of a choice."""

    model_config = ConfigDict(extra="forbid", strict=True)
    question: Words
    rows: list[Annotated[list[Words], Field(max_length=10)]] = Field(max_length=6)
    choices: list[Words] = Field(min_length=2, max_length=6)
    right: int
    why: Words


class Asked(BaseModel):
    """The lecturer asks an exercise. key: that of the hall."""

    model_config = ConfigDict(extra="forbid", strict=True)
    key: Words
    exercise: Exercise


class Answered(BaseModel):
    """A page's answer. session: the page. asked: to which of the hall's exercises."""

    model_config = ConfigDict(extra="forbid", strict=True)
    session: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    asked: int
    choice: Annotated[int, Field(ge=0, le=5)]


OF_EXERCISES: TypeAdapter[Asked | Answered] = TypeAdapter(Asked | Answered)


@dataclass
class Hall:
    """A hall. game: the name of what is played in it; empty where exercises are asked. address: where it was
    opened from. looked: when its counts were last asked for. key: what its lecturer alone knows. asked: the
    number of the exercise. answers: the choices, by session."""

    game: str
    address: str
    opened: float
    looked: float
    plays: dict[str, Play] = field(default_factory=dict)  # by session
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    exercise: Exercise | None = None
    asked: int = 0
    answers: dict[str, int] = field(default_factory=dict)


class Halls:
    """The open halls of a server, by their codes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.halls: dict[str, Hall] = {}  # the first opened one first
        self.reached = ""  # the address by which other machines reach this one, where it has several

    def open(self, game: str, address: str) -> str | None:
        """Opens a hall and returns its code; None where the server or the address has too many. An address
        that has too many loses the first in which nobody has played and which nobody looks at. Where all
        addresses have too many together, the one with the most loses its first."""
        self._end()
        now = time.monotonic()
        seen = now - UNSEEN_SECONDS
        owners = {code: hall.address for code, hall in self.halls.items()}
        held = Holdings(owners.values())
        has_all = held[address] >= self.limits.halls_of_address
        if has_all or len(owners) >= self.limits.halls:
            unused = (
                at for at, hall in self.halls.items() if not hall.plays | hall.answers and hall.looked < seen
            )
            idle = (code for code in unused if owners[code] == address)
            first = next(idle, None) if has_all else held.to_go(owners, newcomer=address)
            if first is None:
                return None
            del self.halls[first]
        code = secrets.token_hex(16)
        self.halls[code] = Hall(game, address, opened=now, looked=now)
        return code

    def get(self, code: str) -> Hall | None:
        self._end()
        return self.halls.get(code)

    def counts(self, code: str) -> dict[str, Any] | None:
        """The counts of the hall; None if it is not open. players: each one's tokens a round, the least
        first. hall, drafter: the tokens of all counted rounds, and of the drafter's drafts at the same
        places, each divided by the rounds; None where nobody has played."""
        if (hall := self.get(code)) is None:
            return None
        hall.looked = time.monotonic()
        plays = [play for play in hall.plays.values() if play.rounds]
        rounds = sum(play.rounds for play in plays)
        if exercise := hall.exercise:
            answers = [[*hall.answers.values()].count(at) for at in range(len(exercise.choices))]
            return {"exercise": exercise.model_dump(), "asked": hall.asked, "answers": answers}
        return {
            "players": sorted(play.tokens / play.rounds for play in plays),
            "hall": sum(play.tokens for play in plays) / rounds if rounds else None,
            "drafter": sum(play.of_drafter for play in plays) / rounds if rounds else None,
        }

    def take(self, code: str, body: bytes) -> str:
        """Takes what the lecturer asks, or an answer. Returns what is wrong with it, or nothing."""
        if (hall := self.get(code)) is None:
            return say("guess.hall.forgotten")
        told = OF_EXERCISES.validate_json(body)
        if isinstance(told, Asked):
            if not secrets.compare_digest(told.key.encode(), hall.key.encode()):
                return say("exercises.not_yours")
            hall.exercise, hall.asked, hall.answers = told.exercise, hall.asked + 1, {}
        elif told.asked != hall.asked or not hall.exercise or told.choice >= len(hall.exercise.choices):
            return say("exercises.over")
        elif len(hall.answers) >= self.limits.plays_of_hall and told.session not in hall.answers:
            return say("guess.hall.full")
        else:
            hall.answers.setdefault(told.session, told.choice)
        return ""

    def count(self, session: str, request: GuessRequest, game: dict[str, Any]) -> str:
        """Counts a round that was judged, if it goes on where the page's first game in this hall stands.
        Returns the sentence for a player whose round is not counted."""
        hall = self.get(request.hall)
        if hall is None or game["name"] != hall.game:
            return say("guess.hall.shut")
        if session not in hall.plays and len(hall.plays) >= self.limits.plays_of_hall:
            return say("guess.hall.full")
        play = hall.plays.get(session, Play())
        is_opening = "guessed" not in game or "drafted" not in game
        if is_opening:
            play.over = play.rounds > 0
        if play.over or is_opening:
            return say("guess.hall.again") if play.over else ""
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
        self, session: str, request: GuessRequest, reports: AsyncIterator[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
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
