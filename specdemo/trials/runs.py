"""Many short runs of the engine, counted by their first tokens: on any pair with drafting on and off, and on
a tiny pair against the target's own distribution, which is enumerated. The tiny pair is so small that every
text of two tokens and its probability can be written down: two real Llama models over a vocabulary of eight
words, with weights from fixed seeds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdemo.engine.draft import LONGEST_DRAFT
from specdemo.engine.emit import Pieces, StopCriteria
from specdemo.engine.sampling import Sampler, Settings
from specdemo.events import Params, Prompt
from specdemo.events.params import values_of_rule
from specdemo.events.trace import pieces
from specdemo.loading.load import load_pair
from specdemo.loading.pair import Pair
from specdemo.session import Alter, loop_of, prepare, stream

TINY_WORDS = ("the", "a", "fox", "bird", "ran", "sang", "home", "and")  # by token id
TINY_PROMPT = (0, 2)
TARGET_SEED, DRAFTER_SEED = 10, 110
SHARPNESS = 1.2  # of the weights: larger ones make the distributions less even
DISAGREEMENT = 0.6  # share of the drafter's weights that are its own
TOKENS = 2  # whose joint distribution is looked at
ROOM = 4  # tokens that a run of the tiny pair may have: enough for a draft of LONGEST_TINY
LONGEST_TINY = ROOM - 1
USUAL_DRAFTED = 2  # where gamma is chosen round by round

# The first TOKENS tokens of a run, by their ids; fewer where the text ended before.
FirstTokens = tuple[int, ...]


def tiny_pair() -> Pair:
    """A new tiny pair each time, on the CPU. Nobody else uses it, so that its forwards may be compiled as
    those of a pair that is loaded: a run takes a third of the time."""
    target, drafter = _model(TARGET_SEED), _model(DRAFTER_SEED)
    for ours, shared in zip(drafter.parameters(), target.parameters(), strict=True):
        ours.data.copy_((1 - DISAGREEMENT) * shared.data + DISAGREEMENT * ours.data)
    pair = load_pair(target=target, drafter=drafter)
    assert isinstance(pair, Pair)
    pair.runner.capture = "auto"
    return pair


def next_logits(pair: Pair, text: list[int]) -> torch.Tensor:
    """The target's logits [1, V] after a text, by transformers' own forward without any cache of ours."""
    with torch.no_grad():
        return pair.target(torch.tensor([text]), use_cache=False).logits[:, -1]


def _model(seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TINY_WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model, generator = LlamaForCausalLM(config).eval(), torch.Generator().manual_seed(seed)
    model.generation_config.eos_token_id = None
    for parameter in model.parameters():
        if parameter.ndim > 1:  # norms stay 1
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(noise * SHARPNESS / parameter.shape[-1] ** 0.5)
    return model


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
    """Runs of the tiny pair. params: see `tiny_params`. alter: what is put into the engine, such as one of
    MISTAKES. expected: the target's own probability of each cell. seen: how often it came out. judged,
    accepted: drafted tokens of all runs so far. seed: that of the next run."""

    params: Params
    alter: Alter = lambda loop: loop
    seen: Counter[FirstTokens] = field(default_factory=Counter)
    judged: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.pair = tiny_pair()
        self.expected = enumerated_cells(self.pair, self.params)
        self.seed = self.params.seed or 0
        started = prepare(self.pair, list(TINY_PROMPT), self.params)
        loop = loop_of(self.pair, started, lambda: False)
        with loop.active():
            loop.prefill(list(TINY_PROMPT))  # the prompt, once for all runs
        self.loop = self.alter(loop)

    def run(self) -> None:
        """Makes one run more, until its first TOKENS tokens stand. It begins after the prompt, in the caches
        of the run before: keys and values are written by position."""
        stop = StopCriteria(frozenset(), (), ROOM)
        emitter = replace(self.loop.emitter, pieces=Pieces(None), stop=stop)
        loop, ids, index = replace(self.loop, seed=self.seed, emitter=emitter), list(TINY_PROMPT), 0
        with loop.active():
            while len(ids) < len(TINY_PROMPT) + TOKENS:
                this_round = loop.round(ids, index)
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
            p = sampler.shape(next_logits(pair, [*TINY_PROMPT, *text]), settings)  # [1, V]
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

    prompt: Prompt
    params: Params
    drafting: Counter[FirstTokens] = field(default_factory=Counter)
    alone: Counter[FirstTokens] = field(default_factory=Counter)
    texts: dict[FirstTokens, str] = field(default_factory=dict)
    judged: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.seed = self.params.seed or 0

    def run(self, pair: Pair, is_over: Callable[[], bool] = lambda: False) -> None:
        """Makes one run more of each kind. The two do not count if is_over was true before both had ended."""
        room = min(self.params.max_new_tokens, LONGEST_DRAFT + 1)
        short, traces = replace(self.params, max_new_tokens=room, alternatives=0), []
        for params in (short, replace(short, draft_with="none")):
            params = replace(params, seed=self.seed)
            with stream(pair, self.prompt, params, measure=False, is_over=is_over) as run:
                for _ in run:
                    if is_over() or len(run.trace.output_ids) >= TOKENS:
                        break
            traces.append(run.trace)
            self.seed = (self.seed + 1) % 2**32
        if is_over():
            return
        for trace, seen in zip(traces, (self.drafting, self.alone), strict=True):
            cell = tuple(trace.output_ids[:TOKENS])
            seen[cell] += 1
            if cell not in self.texts:
                self.texts[cell] = "".join([piece for one in trace.rounds for piece in pieces(one)][:TOKENS])
            self.accepted += trace.stats.accepted
            self.judged += trace.stats.accepted + (trace.stats.rejected or 0)
