"""A visitor's run, from the choice of a pair to the last message. Knows nothing of Gradio."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import asdict
from threading import Thread

from specdemo.events import Params
from specdemo.loading import resolve
from specdemo.pair import Pair, PairError, redacted
from specdemo.pairs import CATALOGUE
from specdemo.residents import Residents
from specdemo.session import Run, stream

PERIOD = 0.05  # seconds between two messages, at least
PATIENCE = 60.0  # seconds to wait for a run that is being closed; it takes one round


class Models:
    """The pairs that a visitor can choose from, by name; loaded when first asked for."""

    def __init__(self, request: dict):
        """`request`: the arguments of `load_pair` for the default pair. Its device, dtype and quantisation hold for all."""
        self.default, self.target, self.drafter = resolve(request.get("name"), request.get("target"), request.get("drafter"))
        how = {option: value for option, value in request.items() if option in ("device", "dtype", "quantize")}
        self.requests = {name: {"name": name, **how} for name in CATALOGUE}
        if self.default not in CATALOGUE:
            self.requests = {self.default: request, **self.requests}
        self.residents = Residents()

    def get(self, name: str | None = None) -> Pair:
        name = self.default if name is None else name
        if not isinstance(name, str) or name not in self.requests:
            raise PairError(f"pair must be one of {', '.join(self.requests)}, not {ascii(name)[:60]}")
        return self.residents.get(**self.requests[name])

    def listed(self) -> list[dict]:
        known = [asdict(entry) for entry in CATALOGUE.values()]
        given = {"name": self.default, "target": self.target, "drafter": self.drafter, "about": "as the server was started with"}
        return known if self.default in CATALOGUE else [given, *known]


class Seat:
    """What the server remembers of one open page: its latest run."""

    run: Run | None = None
    number = 0
    tokenizer = None


def running(models: Models, name: str | None, prompt, params: Params) -> Iterator[str | tuple[Pair, Run]]:
    """Yields a sentence now and then while the pair is loading or not free yet; then (pair, run) every PERIOD while the
    run goes on, and once more when it has ended. Closing this generator closes the run."""
    loading, start = _in_background(models.get, name), time.monotonic()
    while not wait([loading], timeout=0.2).done:
        yield f"Loading the pair {name or models.default} … {time.monotonic() - start:.0f} s"
    pair = loading.result()
    run = None
    while run is None:
        try:
            run = stream(pair, prompt, params)
        except PairError:  # a cancelled run may still be in its last round
            if time.monotonic() - start > PATIENCE:
                raise
            yield "Waiting for the run before this one to end …"
            time.sleep(PERIOD)
    with run:
        last = 0.0
        for _ in run:
            if not run.trace.finish and time.monotonic() - last >= PERIOD:
                yield pair, run
                last = time.monotonic()
    yield pair, run


def _in_background(function, *arguments) -> Future:
    """In a thread that nobody has to wait for, so that Stop works while a model downloads."""
    future = Future()

    def work():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def sentence(error: Exception) -> str:
    if isinstance(error, (PairError, ValueError)):
        return str(error)
    return redacted(f"The run failed: {type(error).__name__}: {' '.join(str(error).split())}")
