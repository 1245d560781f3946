"""What a check takes by its rows: the time of a forward of the target over 1 to 17 rows with its verdict,
after texts of several lengths. It decides whether long drafts can pay, and depends on the machine."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random
from statistics import median, quantiles
from time import perf_counter

from specdemo.engine.detokenize import Pieces
from specdemo.engine.draft import LONGEST_DRAFT, DraftLength, GivenDrafter
from specdemo.engine.loop import Loop
from specdemo.errors import no_mistakes
from specdemo.events import Params
from specdemo.events.params import GRAMMARS
from specdemo.loading.load import look_at
from specdemo.loading.pair import Pair
from specdemo.measure.results import CheckTime
from specdemo.session import held, loop_of, plain_loop, prepare

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # of the drafts that are checked
CONTEXTS = (64, 512, 4096)  # tokens of the text before, as far as the target's context goes
FEWEST_PASSES, MOST_PASSES = 5, 40  # over all lengths


def check_times(
    pair: Pair,
    text: Sequence[int],
    params: Params,
    seconds: float,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[list[CheckTime]]:
    """Yields the times after one length of text after another, until the time is up: a next length is left
    out where reading it would take longer than what is left. text: token ids, repeated as often as needed.
    Nothing is yielded for a target with recurrent layers, which cannot go back in its text."""
    end, read = perf_counter() + seconds, 0.0
    contexts = [length for length in CONTEXTS if length + LONGEST_DRAFT + 1 < pair.context]
    for before, context in zip([0, *contexts], contexts, strict=False):
        began = perf_counter()
        if before and read * context / before > end - began:
            continue
        share = (end - began) / (len(contexts) - contexts.index(context))
        ids = list(islice(cycle(text), context + LONGEST_DRAFT))
        found, read = _times_after(pair, ids, context, params, began + share, is_over)
        if not found:
            return
        yield found


def _times_after(
    pair: Pair, ids: list[int], context: int, params: Params, end: float, is_over: Callable[[], bool]
) -> tuple[list[CheckTime], float]:
    """The times after the first `context` tokens, of checks of those that follow, and how many seconds
    reading these took; no times if they are not all known when it is over."""
    alone = replace(params, **dict.fromkeys(GRAMMARS))  # the text is given, and follows none
    alone = replace(alone, draft_with="none", max_new_tokens=LONGEST_DRAFT + 1, ignore_eos=True, stop=())
    started = prepare(pair, ids[:context], alone)
    times: dict[int, list[float]] = defaultdict(list)
    with held(pair):
        look_at(pair)
        loop = replace(loop_of(pair, started, is_over), ahead=False)
        if loop.verifier.target.states is not None:
            return [], 0.0
        with no_mistakes(), loop.active():
            began = perf_counter()
            loop.prefill(ids[:context])
            read = perf_counter() - began
            own = {length: _checking(loop, pair, ids[context:], length) for length in LENGTHS}
            for one in own.values():  # not timed: what happens at a first use
                one.round(ids[:context], 0)
        order, dice = list(LENGTHS), Random(0)
        for done in range(MOST_PASSES):
            if is_over() or (done >= FEWEST_PASSES and perf_counter() > end):
                break
            dice.shuffle(order)
            for length in order:
                with no_mistakes(), loop.active():
                    times[length].append(own[length].round(ids[:context], 0).ms)
    if len(times[LENGTHS[-1]]) < 2:
        return [], read
    return [_time(context, length, times) for length in LENGTHS], read


def _checking(loop: Loop, pair: Pair, following: Sequence[int], length: int) -> Loop:
    """The loop of the run, with drafts that are the text's own next tokens."""
    own = plain_loop(loop, Pieces(pair.tokenizer))
    drafter = GivenDrafter(list(following), pair.vocab_size, own.verifier.target.device)
    verifier = replace(own.verifier, gamma=length)
    return replace(own, drafter=drafter, verifier=verifier, length=DraftLength(length))


def _time(context: int, length: int, times: Mapping[int, Sequence[float]]) -> CheckTime:
    ratios = [ms / one_row for ms, one_row in zip(times[length], times[0], strict=True)]
    deciles = quantiles(ratios, n=10, method="inclusive")
    ratio = median(ratios)
    return CheckTime(context, 1 + length, ratio * median(times[0]), ratio, deciles[0], deciles[-1])
