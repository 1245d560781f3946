"""What the tests measure the engine against: a table that plays the language model, the distribution it must
have, written in numpy without the package's sampler, and speculative decoding as plainly as it can be
said."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import count, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specdemo.drafters import table
from specdemo.drafters.base import Materials
from specdemo.engine.draft import DraftLength
from specdemo.engine.emit import Emitter, Pieces, StopCriteria
from specdemo.engine.loop import Loop
from specdemo.engine.rules import rule_of
from specdemo.engine.sampling import Sampler, Settings
from specdemo.engine.step import Verifier
from specdemo.engine.tree import tree_of
from specdemo.events import LISTED, Params, Round, is_lossy
from specdemo.events.params import GROWN, MOST_NODES
from specdemo.events.speedup import DraftingCost
from specdemo.runtime.cuda import Clock
from specdemo.runtime.steps import EagerSteps

CPU = torch.device("cpu")
# The drafting methods that can be run over tables: a table has no layers.
WITHOUT_MODEL = [
    name for name, method in LISTED.items() if not method.needs_drafter and method.manner != "chain"
]
KINDS = ["model", *WITHOUT_MODEL]
ROUNDING = 1e-6  # of probabilities, which are float32
SOUND = 1e-3  # the p-value of `exactness` of a right engine is above it


def naive(p_of, q_of, text, gamma, length, uniforms, judge=None, is_unsure=lambda text: False):
    """Speculative decoding without caches, tensors or special cases. p_of(text) and q_of(text): the next
    token's distribution. Goes on until `length` tokens stand; uniforms(round, k) gives that round's
    numbers. judge: naive_speculative, or naive_block. is_unsure(text): whether a draft ends there."""
    judge = judge or naive_speculative
    text = list(text)
    for this_round in count():
        if len(text) == length:
            return text
        k = min(gamma, length - len(text) - 1)
        numbers, draft = uniforms(this_round, k), []
        for u in numbers.draft:
            if is_unsure(text + draft):
                break
            draft.append(pick(q_of(text + draft), u))
        ps = [p_of(text + draft[:i]) for i in range(len(draft) + 1)]
        qs = [q_of(text + draft[:i]) for i in range(len(draft))] + [np.zeros_like(ps[0])]
        kept, weights = judge(ps, qs, draft, numbers.accept)
        text += [*draft[:kept], pick(weights / weights.sum(), numbers.next)]


def naive_speculative(ps, qs, draft, u):
    """How many drafts are kept, and what the next token is drawn from, not normalised. The last q is 0."""
    for i, x in enumerate(draft):
        if not u[i] < min(1, ps[i][x] / qs[i][x]):
            return i, np.maximum(ps[i] - qs[i], 0)
    return len(draft), ps[-1]


def naive_block(ps, qs, draft, u):
    """The same by block verification, from the last place to the first."""
    weights = [1.0]
    for i, x in enumerate(draft):
        weights.append(min(1.0, weights[-1] * ps[i][x] / qs[i][x]))
    for i in range(len(draft), 0, -1):
        rest = np.maximum(weights[i] * ps[i] - qs[i], 0)
        h = weights[i] if i == len(draft) else rest.sum() / (rest.sum() + 1 - weights[i])
        if u[i - 1] < h:
            return i, rest
    return 0, np.maximum(ps[0] - qs[0], 0) if draft else ps[0]


def parents_of(children):
    """The parents of a tree's tokens, depth by depth; -1: the text. children: of each token, by depth."""
    parents, before = [], [-1]
    for many in children:
        start = len(parents)
        parents += [parent for parent in before for _ in range(many)]
        before = range(start, len(parents))
    return parents


def path_to(parents, token):
    """A tree's token and those before it, the first one first; none of the text."""
    return [] if token < 0 else [*path_to(parents, parents[token]), token]


def naive_families(q_of, text, children, room, u):
    """A round's tree: by the path before, (the child, its place, what it was drawn from)."""
    families, place = {}, 0
    paths = [()]
    for many in children[:room]:
        for path in paths:
            q, likeliest = q_of(text + [*path]), q_of(text + [*path], raw=True)
            families[path] = []
            for _ in range(many):
                if q.sum() < 1e-12:
                    q = np.eye(len(q))[likeliest.argmax()]
                q = q / q.sum()
                child = pick(q, u[place])
                families[path].append((child, place, q))
                place += 1
                q, likeliest = q * (np.arange(len(q)) != child), likeliest.copy()
                likeliest[child] = -1
        paths = [(*path, child) for path in paths for child, _, _ in families[path]]
    return families


def naive_grown(q_of, text, grown, room):
    """The same of a tree that grows where the drafter is sure, whose children are chosen."""
    shown, known = {(): 1.0}, []  # paths, and how likely each is
    for _ in range(grown.depth):
        deeper = []
        for path, share in shown.items():
            q = q_of(text + [*path], raw=True)
            likeliest = np.argsort(-q, kind="stable")[: grown.most]
            deeper += [((*path, int(token)), share * q[token]) for token in likeliest]
        known += deeper
        shown = dict(sorted(deeper, key=lambda one: -one[1])[: grown.most])
    least = sorted((share for _, share in known), reverse=True)[: grown.size][-1]
    families = {}
    for place, path in enumerate(path for path, share in known if share >= least):
        if len(path) <= room:
            q = np.eye(len(q_of(text)))[path[-1]]
            families.setdefault(path[:-1], []).append((path[-1], place, q))
    return families


def naive_tree(p_of, q_of, text, tree, length, uniforms):
    """`naive` with trees: the children of a token are drawn without those drawn before, and judged one after
    another by what is left of p."""
    text = list(text)
    for this_round in count():
        if len(text) == length:
            return text
        room = length - len(text) - 1
        numbers = uniforms(this_round, MOST_NODES)
        if tree == "auto":
            families = naive_grown(q_of, text, GROWN, room)
        else:
            families = naive_families(q_of, text, tree, room, numbers.draft)
        path, p = (), p_of(text)
        while path in families:
            for child, at, q in families[path]:
                if numbers.accept[at] < min(1, p[child] / q[child]):
                    path, p = (*path, child), p_of(text + [*path, child])
                    break
                p = np.maximum(p - q, 0)
                p = p / p.sum()
            else:
                break
        text += [*path, pick(p, numbers.next)]


def random_models(seed, vocab_size, length, sharpness=1.0):
    """p and q after each text of up to so many tokens: they depend on all of it."""
    random = np.random.default_rng(seed)

    def some(weights):
        weights = weights**sharpness
        return weights / weights.sum()

    texts = [text for size in range(length + 1) for text in product(range(vocab_size), repeat=size)]
    p = {text: some(random.exponential(size=vocab_size)) for text in texts}
    return p, {text: some(0.5 * p[text] + random.exponential(0.5, size=vocab_size)) for text in texts}


def joint(found, p, length):
    """The distribution of the first `length` tokens, when the target goes on alone after a round. found: the
    texts that the round can emit, with their probabilities."""
    whole = Counter()
    for text, probability in found.items():
        for rest in product(range(len(p[()])), repeat=length - len(text)):
            going_on = [p[(*text, *rest[:i])][x] for i, x in enumerate(rest)]
            whole[(*text, *rest)] += probability * np.prod(going_on)
    return whole


def pick(p, u):
    """The first token at which the cumulative distribution passes u."""
    return int(np.argmax(np.cumsum(p) > float(u)))


def shaped(logits: torch.Tensor, params: Params, text=(), prompt_tokens=0) -> np.ndarray:
    """Logit bias, penalties, temperature, top-k, top-p, min-p, in this order, renormalised: logits [V] after
    a text, which begins with a prompt of so many tokens -> probabilities [V]."""
    logits = logits.double().numpy().copy()
    for token_id, bias in (params.logit_bias or {}).items():
        logits[token_id] += bias
    for token_id in set(text) if params.repetition_penalty else ():
        up, penalty = logits[token_id] < 0, params.repetition_penalty
        logits[token_id] *= penalty if up else 1 / penalty
    for token_id, times in Counter(text[prompt_tokens:]).items():
        logits[token_id] -= params.presence_penalty + times * params.frequency_penalty
    if params.temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    p = np.exp((logits - logits.max()) / params.temperature)
    if params.top_k:
        p[p < np.sort(p)[-min(params.top_k, len(p))]] = 0
    p /= p.sum()
    if params.top_p < 1:
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]  # what is likelier than each token, together
        p[order[before >= params.top_p]] = 0
        p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def settings_of(sampler: Sampler) -> Settings:
    """The sampler's numbers as a step reads them."""
    return Settings.on_host(sampler)


def shaped_by(sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
    """The sampler's probabilities."""
    return sampler.shape(logits, settings_of(sampler))


def nearly_equal(probs, expected) -> bool:
    """Whether probabilities are equal but for float32: its logits have 24 bits, so that a probability can be
    off by a few units of 2^-24 times its logarithm."""
    probs, expected = np.asarray(probs, dtype=float), np.asarray(expected, dtype=float)
    bound = ROUNDING / 2 * expected * (1 - np.log(np.maximum(expected, 1e-300)))
    return bool((abs(probs - expected) <= bound + torch.finfo(torch.float32).tiny).all())


def enumerated(p_of, prompt, length, eos=()) -> dict[tuple[int, ...], float]:
    """Every possible continuation of `length` tokens (fewer after an eos) and its exact probability."""
    texts = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, probability in texts.items():
            if text and text[-1] in eos:
                longer[text] = probability
                continue
            for token_id, p in enumerate(p_of([*prompt, *text])):
                if p > 0:
                    longer[*text, token_id] = probability * p
        texts = longer
    return texts


def p_value(seen: Counter, exact: dict) -> float:
    """Chi-square of what was seen against the exact probabilities; cells with fewer than 5 expected are
    merged. 0 where something impossible was seen."""
    if seen.keys() - exact.keys():
        return 0.0
    runs = seen.total()
    assert math.isclose(sum(exact.values()), 1, abs_tol=1e-9)
    cells, lump = [], [0, 0.0]
    for text, probability in sorted(exact.items(), key=lambda item: item[1]):
        lump = [lump[0] + seen[text], lump[1] + runs * probability]
        if lump[1] >= 5:
            cells.append(lump)
            lump = [0, 0.0]
    if lump[1]:  # cannot happen with runs >= 5: the likeliest come last
        cells[-1] = [cells[-1][0] + lump[0], cells[-1][1] + lump[1]]
    if len(cells) == 1:
        return 1.0
    observed, expected = zip(*cells, strict=True)
    return float(chisquare(observed, expected, sum_check=False).pvalue)


def first_tokens(events, tokens, fates=None) -> tuple[int, ...]:
    """The first `tokens` tokens of a run, which is abandoned as soon as they stand, as any consumer may do.
    fates counts what became of the drafts, and how their rounds ended."""
    ids = ()
    for event in events:
        if isinstance(event, Round):
            ids += tuple(event.emitted)
            if fates is not None:
                fates.update(token.fate for token in event.draft)
                fates[event.next.source if event.next else "ended in the draft"] += 1
                fates[f"ended by {event.ended_by}"] += 1
                fates[f"gamma {event.gamma}"] += 1
            if len(ids) >= tokens:
                break
    return ids[:tokens]


def exactness(run_of, p_of, prompts, tokens, runs, eos=(), fates=None) -> float:
    """The p-value of the first `tokens` tokens of `runs` runs against their exact distribution. p_of(text):
    the target's distribution of the next token. run_of(prompt, seed): a run's events; seeds are 0, 1, ...
    With several prompts, the prompt's number is a part of the outcome."""
    exact, seen = {}, Counter()
    for i, prompt in enumerate(prompts):
        texts = enumerated(p_of, prompt, tokens, eos)
        exact |= {(i, text): probability / len(prompts) for text, probability in texts.items()}
    for seed in range(runs):
        i = seed % len(prompts)
        seen[i, first_tokens(run_of(prompts[i], seed), tokens, fates)] += 1
    return p_value(seen, exact)


class TableLM:
    """A language model that is a table: logits by the last two tokens (or the only one). It remembers its
    context as a real cache would, and what it was fed, so a wrong position gives wrong logits and a second
    feeding can be counted."""

    device, drafts_itself = CPU, False
    features = states = None

    def __init__(self, logits):  # [V+1, V, width]: the token before the last (V: none), the last, the next
        self.known_ids, self.vocab_size = logits.shape[1:]
        self.logits = logits
        self.ids: list[int] = []
        self.kv_length = self.buffer_epoch = self.reserved = 0
        self.forwards = 0
        self.fed: list[tuple[int, int]] = []  # (position, id), in the order of feeding

    def reserve(self, start, length):
        self.next, self.reserved = start, length

    def forward(self, ids, start, branches=None):
        if branches is not None:
            return self._of_branches(ids, start, branches)
        assert ids.dtype == start.dtype == torch.long and ids.ndim == 1 and len(ids) > 0 and start.ndim == 0
        start = start.item()
        assert start == self.next, "the device and the host disagree about where it stands"
        self.next += len(ids)
        assert start <= len(self.ids), "a cache cannot go on from where it never was"
        assert start + len(ids) <= self.reserved, "no room was made for it"
        self.ids[start:] = ids.tolist()
        self.fed += enumerate(self.ids[start:], start)
        self.forwards += 1
        before = [self.ids[i - 1] if i else -1 for i in range(start, len(self.ids))]
        return self.logits[before, self.ids[start:]]

    def _of_branches(self, ids, start, branches):
        """Each row's context is what its mask lets it see: the text, and its own path by depth."""
        start, (rows, newest) = start.item(), branches.hidden.shape
        first = start + rows - newest
        assert start == self.next and len(ids) == rows and start + rows <= self.reserved
        self.next += rows
        self.ids[start:] = ids.tolist()
        self.fed += enumerate(self.ids[start:], start)
        self.forwards += 1
        said = []
        for hidden in branches.hidden.tolist():
            seen = [at for at in range(newest) if not hidden[at]]
            seen.sort(key=lambda at: branches.depths[at].item())
            assert branches.depths[seen].tolist() == [*range(len(seen))], "a row sees one token at each depth"
            path = self.ids[:first] + [self.ids[first + at] for at in seen]
            said.append(self.row(path))
        return torch.stack(said)

    def keep(self, start, kept):
        ids = [self.ids[start + at] for at in kept if start + at < len(self.ids)]
        self.ids[start : start + len(ids)] = ids

    def reads_branches(self):
        return True

    def prefill(self, ids, is_over=lambda: False):
        if len(ids):
            self.reserve(0, len(ids))
            self.forward(ids, torch.tensor(0))
        return int(len(ids) > 0)

    def row(self, text):
        """The logits after a text, without a cache."""
        return self.logits[text[-2] if len(text) > 1 else -1, text[-1]]


def random_table(seed, vocab_size=5, width=None, scale=1.5, never=()):
    """Logits for a TableLM, at which the tokens `never` have probability 0."""
    random = np.random.default_rng(seed)
    logits = torch.tensor(random.normal(0, scale, (vocab_size + 1, vocab_size, width or vocab_size)))
    logits[..., list(never)] = -torch.inf
    return logits


def materials(sampler, target, drafter=None, context=math.inf, run_step=None, **params):
    """What a drafter is built from. target: an LM, or how many tokens one has. drafter: a TableLM, or what
    else drafts. params: those that are not the tests' own."""
    params = Params(**dict(ngram=2, gamma=4) | params)
    target = SimpleNamespace(vocab_size=target, device=CPU) if isinstance(target, int) else target
    tree = tree_of(params) if params.tree else None
    return Materials(params, sampler, target, drafter, run_step or EagerSteps(), math.inf, context, tree=tree)


def make_drafter(kind, *given, **how):
    """The drafter that `draft_with` names. given, how: those of `materials`."""
    build = table.BY_KIND["model"].build if kind == "model" else table.make_drafter
    return build(materials(*given, draft_with=kind, **how))


class Decoding(Iterator):
    """One run of the engine's loop over a prompt: its events, and why the text ended."""

    def __init__(self, decoder: Loop, prompt):
        self.decoder = decoder
        self.events = self._made(list(prompt))

    def _made(self, prompt):
        yield self.decoder.prefill(prompt)
        yield from self.decoder.rounds(prompt)

    def __next__(self):
        return next(self.events)

    @property
    def finish(self):
        return self.decoder.finish


A_TENTH = DraftingCost(token=0.1)


def decoding(
    target, drafter, params, prompt, *, context=math.inf, drafter_context=math.inf, eos=(), stop_ids=(),
    tokenizer=None, run_step=None, sampler=None, rule=None, cost=A_TENTH, compiled=None,
) -> Decoding:  # fmt: skip
    """The engine's loop over a TableLM; `drafter` is a Drafter, or a TableLM for one that is made by
    params.draft_with. rule: in place of the one that params names. compiled: see Verifier."""
    sampler, run_step = sampler or Sampler(params, len(prompt)), run_step or EagerSteps()
    if drafter is None or isinstance(drafter, TableLM):
        how = {name: getattr(params, name) for name in ("ngram", "gamma", "confidence", "tree")}
        tables = (target.vocab_size, drafter, drafter_context, run_step)
        drafter = make_drafter(params.draft_with, sampler, *tables, **how)
    longest = int(min(len(prompt) + params.max_new_tokens, context))
    tree = tree_of(params) if params.tree else None
    gamma = params.gamma if tree is None else tree.size
    stop = StopCriteria(frozenset(eos), params.stop, longest - len(prompt), frozenset(stop_ids))
    rule, tops = rule or rule_of(params), (params.alternatives, drafter.wants_top)
    how = {"confidence": params.confidence, "compiled_verdict": compiled, "tree": tree}
    verifier = Verifier(target, sampler, rule, run_step, gamma, *tops, tuple(eos), **how)
    emitter = Emitter(Pieces(tokenizer), lambda token_id: "", stop, params.rule, is_lossy(params))
    length = DraftLength(0 if params.draft_with == "none" else gamma, cost)
    return Decoding(Loop(drafter, verifier, emitter, length, longest, params.seed, Clock()), prompt)


def leaves_of(draft):
    """The paths of a recorded tree, from the text to each token that nothing follows: places in the draft."""
    paths = []
    for at, token in enumerate(draft):
        paths.append([*([] if token.parent is None else paths[token.parent]), at])
    before = {token.parent for token in draft}
    return [path for at, path in enumerate(paths) if at not in before]


def assert_nearly_the_same(rounds, others, apart=2e-4):
    """The same tokens and fates, and the same numbers but for rounding: by at most `apart`, which is for two
    different forwards. One forward over weights that two loads have put elsewhere stays within 1e-5."""
    assert len(rounds) == len(others)
    for this_round, other in zip(rounds, others, strict=True):
        assert this_round.emitted == other.emitted and len(this_round.draft) == len(other.draft)
        places = zip((*this_round.draft, this_round.next), (*other.draft, other.next), strict=True)
        for a, b in places:
            if a is b is None:
                continue
            assert (a.id, a.text, getattr(a, "fate", None)) == (b.id, b.text, getattr(b, "fate", None))
            assert numbers_of(a) == pytest.approx(numbers_of(b), abs=apart)


def numbers_of(place):
    """All probabilities and uniform numbers of a place in a round; -1 where there is none."""
    of_place = (place.p, place.q, place.raw_p, place.raw_q, place.u, getattr(place, "accept_prob", None))
    of_top = (number for row in sorted(place.top) for number in row[2:])
    return [-1.0 if number is None else number for number in (*of_place, *of_top)]
