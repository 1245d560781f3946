"""What the target alone takes for a token, timed right after a run: on its text, in its cache, under its
load."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from specdemo.engine.detokenize import Pieces
from specdemo.engine.drafters import NoDrafter
from specdemo.engine.emit import Emitter
from specdemo.engine.length import DraftLength
from specdemo.engine.loop import Decoder
from specdemo.engine.stopping import StopCriteria
from specdemo.events import Stats
from specdemo.events.metrics import FEWEST

SHARE = 0.1  # of the run's own time, at most
MOST = 30  # rounds


def plain_rounds(decoder: Decoder, pieces: Pieces, ids: list[int], stats: Stats) -> Iterator[float]:
    """Milliseconds of plain rounds (nothing drafted) at places spread over the text of a run that has ended.
    Yields none if there is no time for as many as a target step needs.

    decoder: the run's. pieces: fresh ones. ids: prompt and text. What the rounds write into the cache is what
    it holds there already."""
    verifier = replace(decoder.verifier, wants_top=0)
    drafter = NoDrafter(verifier.target.vocab_size, verifier.target.device)
    unending = StopCriteria(frozenset(), (), room=-1)
    emitter = Emitter(pieces, decoder.emitter.token_text, unending)
    plain = replace(decoder, drafter=drafter, verifier=verifier, emitter=emitter, length=DraftLength(0))
    verifier.target.features = None  # the target alone

    share_ms = SHARE * stats.run_ms
    # A plain round takes no longer than one that verifies drafts.
    count = min(MOST, stats.tokens, int(share_ms / max((stats.verify_ms or 0.0) / stats.rounds, 1e-6)))
    if count < FEWEST:
        return
    times_ms: list[float] = []
    first = len(ids) - stats.tokens  # where the prompt ends
    for i in range(count):
        if i and sum(times_ms) + mean(times_ms) > share_ms:
            return
        this_round = plain.round(ids[: first + i * stats.tokens // count], stats.rounds + i)
        times_ms.append(this_round.ms)
        yield times_ms[-1]
