"""Many short runs of the engine, counted by their first tokens: on the tiny pair against the target's own
distribution, which is enumerated, and on any pair with drafting on and off."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specdemo.engine.detokenize import Pieces
from specdemo.engine.draft import LONGEST_DRAFT
from specdemo.engine.emit import StopCriteria
from specdemo.engine.sampling import Sampler, Settings
from specdemo.events import Params, Prompt
from specdemo.events.params import values_of_rule
from specdemo.events.trace import Trace, pieces
from specdemo.loading.pair import Pair
from specdemo.session import Alter, loop_of, prepare, stream
from specdemo.trials.mistakes import MISTAKES
from specdemo.trials.tiny import TINY_PROMPT, next_logits, tiny_pair

TOKENS = 2  # whose joint distribution is looked at
ROOM = 4  # tokens that a run of the tiny pair may have: enough for a draft of LONGEST_TINY
LONGEST_TINY = ROOM - 1
USUAL_DRAFTED = 2  # where gamma is chosen round by round

FirstTokens = tuple[
    int, ...
]  # the first TOKENS tokens of a run, by their ids; fewer where the text ended before


def tiny_params(params: Params, mistake: str | None = None, guesses: int = 1) -> Params:
    """The Params of the tiny pair's runs: sampler, rule, draft length and seed are those of `params`.
    mistake: one of MISTAKES, which are made in the rule "speculative"; "soft" is one of greedy runs only.
    guesses: at each place. Several are a tree, which has that rule, too, and is no deeper than TOKENS."""
    gamma = USUAL_DRAFTED if params.gamma == "auto" else min(params.gamma, LONGEST_TINY)
    has_own_rule = mistake is None and guesses == 1
    return Params(
        gamma=gamma,
        tree=(guesses,) * min(gamma, TOKENS) if guesses > 1 else (),
        **({"rule": params.rule, **values_of_rule(params)} if has_own_rule else {}),
        temperature=0.0 if mistake == "soft" else params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=1.0,
        seed=params.seed,
        max_new_tokens=ROOM,
        alternatives=0,
    )


@dataclass
class TinyTrials:
    """Runs of the tiny pair. params: see `tiny_params`. mistake: one of MISTAKES, None for the engine as it
    is. alter: what else is put into the engine. expected: the target's own probability of each cell. seen:
    how often it came out. judged, accepted: drafted tokens of all runs so far. seed: that of the next run."""

    params: Params
    mistake: str | None = None
    alter: Alter = lambda decoder: decoder
    seen: Counter[FirstTokens] = field(default_factory=Counter)
    judged: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.pair = tiny_pair()
        self.expected = enumerated_cells(self.pair, self.params)
        self.seed = self.params.seed or 0
        started = prepare(self.pair, list(TINY_PROMPT), self.params)
        decoder = loop_of(self.pair, started, lambda: False)
        with self.pair.runner.active():
            next(decoder.decode(list(TINY_PROMPT)))  # the prompt, once for all runs
        self.decoder = self.alter(decoder if self.mistake is None else MISTAKES[self.mistake](decoder))

    def run(self) -> None:
        """Makes one run more, until its first TOKENS tokens stand. It begins after the prompt, in the caches
        of the run before: keys and values are written by position."""
        stop = StopCriteria(frozenset(), (), ROOM)
        emitter = replace(self.decoder.emitter, pieces=Pieces(None), stop=stop)
        decoder, ids, index = replace(self.decoder, seed=self.seed, emitter=emitter), list(TINY_PROMPT), 0
        with self.pair.runner.active():
            while len(ids) < len(TINY_PROMPT) + TOKENS:
                this_round = decoder.round(ids, index)
                ids += this_round.emitted
                index += 1
                fates = [token.fate for token in this_round.draft]
                self.accepted += fates.count("accepted")
                self.judged += len(fates) - fates.count("discarded")
        self.seen[tuple(ids[len(TINY_PROMPT) :][:TOKENS])] += 1
        self.seed = (self.seed + 1) % 2**32


def enumerated_cells(pair: Pair, params: Params) -> dict[FirstTokens, float]:
    """The probability of every text of TOKENS tokens, by the target alone: its own forwards without a cache,
    and the sampler's filters. Those with probability 0 are left out."""
    sampler = Sampler(params)
    settings = Settings.on_host(sampler)
    cells: dict[FirstTokens, float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[FirstTokens, float] = {}
        for text, probability in cells.items():
            p, _exact = sampler.shape(next_logits(pair, [*TINY_PROMPT, *text]), settings)  # [1, V]
            for token_id, each in enumerate(p[0].tolist()):
                if each > 0:
                    longer[*text, token_id] = probability * each
        cells = longer
    return cells


@dataclass
class PairTrials:
    """Runs of any pair with drafting on and off, in turns. texts: what each cell reads. judged, accepted:
    drafted tokens of all runs so far. seed: that of the next run; no two have the same one, or the same
    uniform numbers would make both samples alike."""

    pair: Pair
    prompt: Prompt
    params: Params
    drafting: Counter[FirstTokens] = field(default_factory=Counter)
    alone: Counter[FirstTokens] = field(default_factory=Counter)
    texts: dict[FirstTokens, str] = field(default_factory=dict)
    judged: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.seed = self.params.seed or 0

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Makes one run more of each kind. The two do not count if is_over was true before both had ended."""
        room = min(self.params.max_new_tokens, LONGEST_DRAFT + 1)
        short = replace(self.params, max_new_tokens=room, alternatives=0)
        both = []
        for params in (short, replace(short, draft_with="none")):
            both.append(self._first_tokens(replace(params, seed=self.seed), is_over))
            self.seed = (self.seed + 1) % 2**32
        if is_over():
            return
        for trace, seen in zip(both, (self.drafting, self.alone), strict=True):
            cell = tuple(trace.output_ids[:TOKENS])
            seen[cell] += 1
            if cell not in self.texts:
                self.texts[cell] = "".join([piece for one in trace.rounds for piece in pieces(one)][:TOKENS])
            fates = [token.fate for one in trace.rounds for token in one.draft]
            self.accepted += fates.count("accepted")
            self.judged += len(fates) - fates.count("discarded")

    def _first_tokens(self, params: Params, is_over: Callable[[], bool]) -> Trace:
        """The trace of a run that is closed once its first TOKENS tokens stand."""
        with stream(self.pair, self.prompt, params, measure=False, is_over=is_over) as run:
            for _ in run:
                if is_over() or len(run.trace.output_ids) >= TOKENS:
                    break
        return run.trace
