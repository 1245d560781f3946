"""SGLang: a chunk is a round. Usually each chunk has the whole text so far. At the end the server tells how
many drafts it judged. From its documentation and source (0.5.23); nobody has tried a real server here."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from specdemo.events import Params
from specdemo.servers.chunks import (
    LONGEST_WORD,
    MOST_ALTERNATIVES,
    MOST_DRAFT,
    MOST_OF_A_RUN,
    MOST_STEPS,
    UNFINISHED,
    Chunk,
    ChunkReader,
    Count,
    DraftTokens,
    LogProb,
    Merged,
    Misread,
    PerRequest,
    Piece,
    Sent,
    Steps,
    Token,
    TokenId,
    first_fault,
    probability_of,
    texts_of,
)
from specdemo.servers.client import ASK_SECONDS, LONGEST_TOKEN, Client, Request, Room, readable
from specdemo.servers.software import Asked, Looked, Software, most_ids
from specdemo.words.message import Message, about, refusal

MOST_REPEATED = 4_096  # tokens of a text of which each chunk has all
CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")  # where one branch makes a chain of a fixed length
INCREMENTAL = "start it with --incremental-streaming-output"
DETERMINISTIC = "start it with --enable-deterministic-inference"


class SGLang(Software):
    name = "SGLang"

    def __init__(self, client: Client, model: str):
        super().__init__(client, model)
        self.info = self._info()

    def _info(self) -> "HowStarted":
        for path in ("/server_info", "/get_server_info"):
            try:
                return HowStarted.model_validate_json(self.client.optional(path, seconds=ASK_SECONDS) or "")
            except ValidationError:
                continue
        return HowStarted()

    def look(self, context: float | None) -> Looked:
        info = self.info
        self.tried(self.probed)
        notes = ["the server tells no p, q and u, and the target's probabilities at temperature 0 and 1 only"]
        if info.longest and not info.is_chain:
            why = "its drafts have branches, or not all of them the same length"
            notes.append(f"how many tokens were refused in a round is not known: {why}")
        if not info.enable_deterministic_inference:
            notes.append(f"the seed has no effect: {DETERMINISTIC}")
        if not info.incremental:
            notes.append(f"the server sends its whole text again with each chunk: {INCREMENTAL}")
        known = float("inf") if context is None else context
        version = info.version and readable(info.version)
        return Looked(version, known, info.longest, info.is_chain, info.method, info.parallel, tuple(notes))

    def request(self, asked: Asked) -> Request:
        params = asked.params
        if params.chat and not asked.ids:
            raise self.client.error("does not tell what its chat template makes of the prompt")
        same = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")
        sampling: dict[str, Any] = {
            **{name: getattr(params, name) for name in same},
            "top_k": params.top_k or -1,
            "sampling_seed": params.seed,
            "max_new_tokens": asked.most,
            "stop": list(params.stop),
            "no_stop_trim": True,
            "stream_interval": 1,
        }
        if params.logit_bias:
            sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
        if params.json_schema is not None:
            sampling["json_schema"] = params.json_schema
        alternatives = params.alternatives if self.info.incremental else 0
        body: dict[str, Any] = {
            **({"input_ids": list(asked.ids)} if asked.ids else {"text": asked.prompt}),
            "sampling_params": sampling,
            **{"stream": True, "return_logprob": True, "return_text_in_logprobs": True},
            "top_logprobs_num": alternatives,
        }
        most = most_ids(asked.ids or asked.prompt)
        return Request("/generate", body, Room(asked.most, alternatives, most, not self.info.incremental))

    def reader(self, request: Request) -> ChunkReader:
        return SGLangReader(request, self.info)

    def faults(self, params: Params, drafts: bool) -> Iterator[Message | str]:
        if params.min_p and params.temperature and drafts:
            yield about("min_p", "servers_min_p", software=self.name)
        if params.stop and drafts:
            yield about("stop", "servers_stop", software=self.name)
        if params.repetition_penalty not in (None, 1.0):
            yield about("repetition_penalty", "servers_leave_prompt", software=self.name)
        if not self.info.incremental and params.max_new_tokens > MOST_REPEATED:
            key, most = "servers_repeat", MOST_REPEATED
            yield refusal("max_new_tokens", key, params.max_new_tokens, most=most, option=INCREMENTAL)
        for name in ("regex", "grammar"):
            if getattr(params, name) is not None:
                yield about(name, "grammar_not_sent")


Devices = Annotated[int, Field(ge=1, le=100_000)]
Told = Annotated[str, Field(max_length=LONGEST_WORD)]


def named(name: str, older: str, default: Any) -> Any:
    """A field that has another name in older versions."""
    return Field(default, validation_alias=AliasChoices(name, older))


class HowStarted(BaseModel):
    """How the server was started. method, gamma: see ServerInfo. Where drafts have branches,
    speculative_num_draft_tokens counts all their tokens and speculative_num_steps those of a branch."""

    version: Told | None = None
    speculative_algorithm: Told | None = None
    speculative_adaptive: bool | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_steps: DraftTokens | None = None
    speculative_num_draft_tokens: DraftTokens | None = None
    incremental: bool = named("incremental_streaming_output", "stream_output", False)
    enable_deterministic_inference: bool = False
    tp_size: Devices = 1
    pp_size: Devices = 1
    dp_size: Devices = 1

    @property
    def is_told(self) -> bool:
        return "speculative_algorithm" in self.model_fields_set

    @property
    def method(self) -> str | None:
        algorithm = self.speculative_algorithm
        return readable(algorithm) if algorithm else "none" if self.is_told else None

    @property
    def longest(self) -> int | None:
        if self.speculative_algorithm is None:
            return 0 if self.is_told else None
        if (self.speculative_eagle_topk or 1) > 1:
            return self.speculative_num_steps
        count = self.speculative_num_draft_tokens  # with the token before the draft
        return count - 1 if count else None

    @property
    def is_chain(self) -> bool:
        """Whether each draft is one branch of the same length."""
        is_fixed = self.speculative_algorithm in CHAINS and not self.speculative_adaptive
        return self.longest == 0 or (is_fixed and (self.speculative_eagle_topk or 1) == 1)

    @property
    def parallel(self) -> str | None:
        if not self.is_told:
            return None
        sizes = {"tensor": self.tp_size, "pipeline": self.pp_size, "data": self.dp_size}
        words = [f"{kind}-parallel over {size}" for kind, size in sizes.items() if size > 1]
        return ", ".join(words) or "not parallel"


Logprob = tuple[LogProb | None, TokenId, Token | None]
OF_ALL = Field(max_length=MOST_STEPS)  # a list with an entry for each of the text's tokens


class _Finish(Sent):
    type: Annotated[str, Field(max_length=LONGEST_WORD)]
    matched: int | str | list[int] | None = None
    message: str | None = None


class _Meta(Sent):
    finish_reason: _Finish | None = None
    completion_tokens: Count
    e2e_latency: Annotated[float, Field(ge=0, le=MOST_OF_A_RUN)] | None = None  # s
    output_token_logprobs: Annotated[list[Logprob], OF_ALL] = []
    output_top_logprobs: (
        Annotated[list[Annotated[list[Logprob], Field(max_length=MOST_ALTERNATIVES)] | None], OF_ALL] | None
    ) = None
    judged: Count | None = Field(None, validation_alias="spec_verify_ct")
    accepted: Count = named("spec_num_correct_drafts", "spec_accept_token_num", 0)
    drafted: Count = named("spec_num_proposed_drafts", "spec_draft_token_num", 0)
    histogram: Annotated[list[Count], Field(max_length=MOST_DRAFT)] = named(
        "spec_correct_drafts_histogram", "spec_accept_histogram", []
    )


class _Event(Sent):
    text: str = ""
    output_ids: Annotated[list[TokenId], OF_ALL]
    meta_info: _Meta


class SGLangReader(ChunkReader):
    def __init__(self, request: Request, info: HowStarted):
        super().__init__(request.room)
        self.info, self.text, self.kept = info, "", ""
        # It takes the temperature into account, and divides by none where it is 0.
        self.is_raw = request.body["sampling_params"]["temperature"] in (0, 1)

    def chunks(self, event: dict[str, Any]) -> list[Chunk]:
        try:
            read = _Event.model_validate(event)
        except ValidationError as error:
            raise Misread(f"sent a chunk that SGLang would not send: {first_fault(error)}") from None
        meta, count = read.meta_info, len(read.output_ids)
        new = meta.completion_tokens - self.tokens
        if new < 0 or count not in (new, meta.completion_tokens):
            said = f"{meta.completion_tokens:,} tokens in all after {self.tokens:,}, and sent {count:,}"
            raise Misread(f"counts {said}")
        if new > MOST_DRAFT + 1:
            raise Merged(f"sends several rounds in a chunk: it has {new:,} new tokens")
        repeats = self.tokens > 0 and count == meta.completion_tokens
        if repeats and not read.text.startswith(self.text):
            raise Misread("takes back a part of its text")
        words = self.kept + (read.text[len(self.text) :] if repeats else read.text)
        self.text += words[len(self.kept) :]
        self.kept = "" if new else words
        at = self.tokens if repeats else 0  # where those begin that are new
        pieces = self._pieces(read.output_ids[at:], at, words, meta) if new else ()
        chunks: list[Chunk] = []
        if self.info.longest == 0:  # each token is a round, however many are sent at once
            chunks = [Chunk((piece,), None, None, None) for piece in pieces[:-1]]
            pieces = pieces[-1:]
        finish = meta.finish_reason
        if finish is None:
            return [*chunks, Chunk(pieces, None, None, None)]
        if finish.type not in ("length", "stop"):
            raise Misread(f"gave the run up: {finish.message or finish.type}")
        stop = finish.matched if isinstance(finish.matched, str) else None
        return [*chunks, Chunk(pieces, finish.type, stop, None, self._told(meta))]

    def _pieces(self, ids: list[int], at: int, words: str, meta: _Meta) -> tuple[Piece, ...]:
        """at: where in the lists of probabilities they begin, which can go on behind the end of the text."""
        own = meta.output_token_logprobs[at : at + len(ids)]
        if meta.output_token_logprobs and [token_id for _, token_id, _ in own] != ids:
            raise Misread("sent the probabilities of other tokens than those that it sent")
        if len(words) > LONGEST_TOKEN * len(ids):
            raise Misread(f"sent {len(words):,} characters as the text of a chunk of {len(ids)} tokens")
        texts = texts_of(words, [name or UNFINISHED for _, _, name in own] or [UNFINISHED] * len(ids))
        raws = [probability_of(logprob) for logprob, _, _ in own] or [None] * len(ids)
        tops = (meta.output_top_logprobs or [])[at : at + len(ids)] or [None] * len(ids)
        if len(tops) != len(ids):
            raise Misread("sent a chunk whose tokens and alternatives differ in number")
        rows = zip(ids, texts, raws, tops, strict=True)
        return tuple(
            Piece(id_, text, raw, _top(top)) if self.is_raw else Piece(id_, text, None, ())
            for id_, text, raw, top in rows
        )

    def _told(self, meta: _Meta) -> PerRequest:
        steps, total = None, None if meta.e2e_latency is None else 1000 * meta.e2e_latency
        if meta.judged is not None:
            of_each = sum(meta.histogram) <= MOST_STEPS  # else it is none
            steps = Steps(
                num_spec_tokens=self.info.longest or max(0, len(meta.histogram) - 1),
                num_spec_steps=meta.judged,
                num_draft_tokens=meta.drafted,
                num_accepted_draft_tokens=meta.accepted,
                per_step_accepted=[n for n, times in enumerate(meta.histogram) for _ in range(times)]
                if of_each
                else None,  # in another order
            )
        return PerRequest(total_time_ms=total, speculative_decoding=steps)


def _top(rows: list[Logprob] | None) -> tuple:
    of_rows = ((probability_of(logprob), id_, name) for logprob, id_, name in rows or [])
    return tuple((id_, name or "", None, None, raw, None) for raw, id_, name in of_rows if raw is not None)
