"""A server by its address, and one run on it, as the events of any run."""

from collections.abc import Generator
from contextlib import closing
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from specdemo.errors import PairError, failure
from specdemo.events import Finished, Round, Started
from specdemo.events.trace import Trace
from specdemo.servers.client import Client, Condition, readable, server_address
from specdemo.servers.llama_cpp import LlamaCpp
from specdemo.servers.software import Context, Misread, ServedPair, first_fault, round_of
from specdemo.servers.vllm import Vllm

LONGEST_MODEL_NAME = 1_000  # characters: it can be a path
MOST_MODELS = 1_000  # adapters are models, too
MOST_DRAFTED = 1_000_000  # tokens in a run, each of which is shown: 30 for each of the longest text's
SOFTWARE: dict[str, type[ServedPair]] = {"vllm": Vllm, "llamacpp": LlamaCpp}  # by owned_by


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_MODEL_NAME)]
    owned_by: str | None = None
    max_model_len: Context | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(max_length=MOST_MODELS)]


def connect(url: str, key: str | None = None, name: str | None = None) -> ServedPair:
    """Asks the server at this address what it is, and for a few tokens. key: its --api-key. name: shown in
    place of the address. PairError for a wrong address, ServerError if the server cannot be used."""
    client = Client(server_address(url), key, name)
    text = client.ask("/v1/models")
    if text is None:
        raise client.error("has no /v1/models: this needs a server of vLLM or llama.cpp")
    try:
        models = _Models.model_validate(client.parsed(text)).data
    except ValidationError as error:
        raise client.error(f"sent a wrong list of models: {first_fault(error)}") from None
    if not models:
        raise client.error("serves no model")
    model, *others = models
    if model.owned_by and model.owned_by not in SOFTWARE:
        why = "only these tell their rounds in a way that is read here"
        owner = client.without_host(readable(model.owned_by))[:40]
        raise client.error(f"is of {owner} and not vLLM or llama.cpp: {why}")
    pair = SOFTWARE[model.owned_by or "vllm"](client, model.id, model.max_model_len)
    pair.notes += [f"the server has {len(others)} more models, which are not used"] if others else []
    return pair


def served_events(
    pair: ServedPair, started: Started, trace: Trace, is_closing: Condition
) -> Generator[Started | Round | Finished, None, None]:
    """The events of a run on a server. is_closing: whether the run is to end early; once true, always true.
    trace: filled meanwhile; its rounds are revised at the end, if the server then tells more of them."""
    yield started
    try:
        prompt = started.messages or started.prompt
        answer = pair.answer(started.params, prompt, started.prompt_ids, is_closing)
        if is_closing():
            return
        with closing(answer.arriving(is_closing)) as chunks:
            for chunk in chunks:
                trace.prompt_ids = trace.prompt_ids or answer.prompt_ids
                if chunk.tokens:
                    trace.add(round_of(len(trace.rounds), chunk, pair.longest, pair.always))
                    _check_drafted(trace.stats.drafted)
                if chunk.finish:  # before the yield, so that whoever sees the last round sees a whole text
                    trace.end(chunk.finish)
                if chunk.tokens:
                    yield trace.rounds[-1]
        if trace.finish is None:
            if is_closing():
                return
            raise Misread("broke off in the middle of its answer")
        always = answer.settle(is_closing)
        _check_drafted(sum(chunk.drafted or 0 for chunk in answer.chunks))
        revised = [round_of(at, one, pair.longest, always) for at, one in enumerate(answer.chunks)]
        if revised != trace.rounds:
            trace.revise(revised)
    except Exception as error:
        pair.failed = True
        shown = pair.client.error(str(error)) if isinstance(error, Misread) else error
        trace.end("error", str(shown if isinstance(shown, PairError) else failure(shown)))
        raise shown from None
    assert trace.finished is not None
    yield trace.finished


def _check_drafted(count: int | None) -> None:
    if count is not None and count > MOST_DRAFTED:
        raise Misread(f"has drafted more than {MOST_DRAFTED:,} tokens: ask for a shorter text")
