"""A chunk of k ids is a round: k - 1 accepted drafts, and the target's own token. What was refused is not
told, so its number follows from the draft's length where that is known, and its tokens have no id. llama.cpp
tells the number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdemo.events import Fate, Judged, Next, Round, Source
from specdemo.servers.chunks import Chunk, Merged, Misread, Piece, Steps

MOST_COUNTED = 1_000_000  # tokens in a run, each of which is shown: 30 for each of the longest text's


def round_of(index: int, chunk: Chunk, arrival_ms: float, longest: int | None, always: bool) -> Round:
    """The round that a chunk holds. longest: the most tokens of a draft, 0 if the server does not draft, None
    if it is not known. always: whether every draft has so many."""
    pieces = chunk.pieces
    if chunk.accepted is not None:
        return made(index, pieces, chunk.accepted, chunk.drafted, longest, arrival_ms)
    if index == 0:
        if len(pieces) > 1:
            raise Merged("sends several rounds in a chunk: the first must have one token, the prefill's")
        return made(0, pieces, 0, 0, None, arrival_ms)
    accepted = len(pieces) - 1
    if longest is not None and accepted > longest:
        most = (
            f"at most {longest} drafts and one more token"
            if longest
            else "one token, since it does not draft"
        )
        raise Merged(f"sends several rounds in a chunk: it has {len(pieces)} tokens, but a round has {most}")
    drafted = longest if always or longest == accepted else None
    if longest is not None and chunk.finish is not None:
        drafted = accepted  # the end of the text may have cut it
    a_round = made(index, pieces, accepted, drafted, longest, arrival_ms)
    if chunk.finish is None or not longest or longest == accepted or a_round.next is None:
        return a_round
    own = replace(a_round.next, source="sampled")
    return replace(a_round, next=own, ended_by="length" if chunk.finish == "length" else "eos")


def made(
    index: int,
    pieces: Sequence[Piece],
    accepted: int,
    drafted: int | None,
    longest: int | None,
    arrival_ms: float | None,
) -> Round:
    """A round made of what the server has told. pieces: those that the round added to the text. accepted,
    drafted: how many tokens were; drafted None: not told. longest: see `round_of`."""
    draft = [_judged("accepted", piece) for piece in pieces[:accepted]]
    has_own = accepted < len(pieces)
    if drafted is not None:
        untold = drafted - len(draft)
        draft += [_judged("discarded")] * untold
        if untold and has_own:  # else the text ended before a rejection
            draft[accepted] = _judged("rejected")
    source: Source = "sampled" if not drafted else "bonus" if drafted == accepted else "resampled"
    return Round(
        index=index,
        draft=tuple(draft),
        next=Next(**_told(pieces[accepted]), source=source, residual_mass=None) if has_own else None,
        emitted=tuple(piece.id for piece in pieces),
        draft_ms=None,
        verify_ms=None,
        gamma=longest or None,
        ended_by=None if not drafted or drafted != longest else "gamma",
        arrival_ms=arrival_ms,
        drafts_told=drafted is not None,
    )


def settled(rounds: Sequence[Round], steps: Steps) -> list[Round] | None:
    """The rounds with the drafts that the server tells after their end; None where it does not tell them for
    each round: forwards that judged no draft are not in its lists."""
    accepted, drafted = steps.per_step_accepted or [], steps.per_step_drafted or []
    if not (len(accepted) == len(drafted) == len(rounds) - 1):
        return None
    check_drafted(sum(drafted))
    result = [rounds[0]]
    for a_round, kept, proposed in zip(rounds[1:], accepted, drafted, strict=True):
        pieces = pieces_of(a_round)
        is_last = a_round is rounds[-1]
        if proposed > steps.num_spec_tokens:
            raise Misread(f"counts {proposed} drafts in a round, but says {steps.num_spec_tokens} at most")
        if not kept <= proposed or (len(pieces) != kept + 1 and not (is_last and len(pieces) <= kept)):
            raise Misread(
                f"has sent {len(pieces)} tokens for round {a_round.index + 1}, but counts {kept} accepted "
                "drafts: a chunk is not a round there"
            )
        result.append(made(a_round.index, pieces, kept, proposed, steps.num_spec_tokens, a_round.arrival_ms))
    return result


def check_drafted(count: int | None) -> None:
    """Misread if a run has drafted more than MOST_COUNTED tokens. count: how many tokens were drafted in a
    run, None where it is not known."""
    if count and count > MOST_COUNTED:
        raise Misread(f"has drafted more than {MOST_COUNTED:,} tokens: ask for a shorter text")


def with_last(rounds: list[Round], accepted: int, drafted: int) -> list[Round]:
    """The rounds with the last one settled: how many tokens of all rounds together were drafted and accepted.
    The text has cut it."""
    *before, last = rounds
    kept = accepted - sum(token.fate == "accepted" for one in before for token in one.draft)
    proposed = drafted - sum(len(one.draft) for one in before)
    pieces = pieces_of(last)
    if not len(pieces) - 1 <= kept <= proposed:
        return rounds
    return [*before, made(last.index, pieces, kept, proposed, last.gamma, last.arrival_ms)]


def untold(rounds: Sequence[Round]) -> list[Round]:
    """The rounds without what was taken from the draft's length."""
    result = [rounds[0]]
    for a_round in rounds[1:]:
        pieces = pieces_of(a_round)
        full = len(pieces) - 1 if a_round.gamma == len(pieces) - 1 else None
        result.append(made(a_round.index, pieces, len(pieces) - 1, full, a_round.gamma, a_round.arrival_ms))
    return result


def unjudged(a_round: Round) -> Round:
    """The round without probabilities."""
    draft = tuple(replace(token, raw_p=None, top=()) for token in a_round.draft)
    return replace(a_round, draft=draft, next=a_round.next and replace(a_round.next, raw_p=None, top=()))


def pieces_of(a_round: Round) -> list[Piece]:
    """What the round has added to the text."""
    own = (a_round.next,) if a_round.next else ()
    kept = a_round.draft[: len(a_round.emitted) - len(own)]
    tokens = zip(a_round.emitted, (*kept, *own), strict=True)
    return [Piece(token_id, token.text, token.raw_p, token.top) for token_id, token in tokens]


def _judged(fate: Fate, piece: Piece | None = None) -> Judged:
    """A drafted token with its fate. piece: None for a draft whose token is not told."""
    return Judged(**_told(piece), accept_prob=None, fate=fate)


def _told(piece: Piece | None) -> dict[str, Any]:
    """A token's fields; the server tells no p, q and u."""
    told = (piece.id, piece.text, piece.probability, piece.top) if piece else (None, "", None, ())
    known = dict(zip(("id", "text", "raw_p", "top"), told, strict=True))
    return known | dict.fromkeys(("p", "q", "raw_q", "u"))
