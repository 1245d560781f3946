"""What a server allows its visitors: on one's own machine, and in public."""

from dataclasses import dataclass, replace

from specdemo.events import Params, check_number

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Sizes are in bytes, times in seconds. None: no limit.

    hosted: anyone may visit, so only listed pairs can be chosen, as the server loads them. behind_proxy: a
    visitor's address is what the proxy says, since nobody comes without it.
    """

    hosted: bool = False
    behind_proxy: bool = False
    # Of a trace file that is opened; 10,000 tokens with five alternatives take about 11 million.
    trace_bytes: int = 16 * MIB
    body_bytes: int = 2 * MIB  # of any other request
    prompt_characters: int = 1_000_000  # or token ids
    max_new_tokens: int = 32_768
    alternatives: int = 50
    waiting: int = 200  # runs and measurements in line whose answer is being read
    waiting_of_address: int | None = None  # those of one address among them
    loading: int = 60  # runs and measurements whose pair is being loaded
    run_seconds: float | None = None  # of a visitor's turn
    load_seconds: float = 1_800  # of a pair, download included
    sessions: int = 1_000  # open pages
    session_bytes: int = 64 * MIB  # that the sessions keep together
    uncollected: int = 500  # requests whose answer nobody has begun to read
    uncollected_of_address: int = 250  # those of one address among them
    listen_seconds: float = 20  # after which such a request is dropped
    reader_seconds: float = 120  # that a reader may take nothing of its answer: a laptop may have slept
    events_of_session: int = 200  # requests of one page or client that are not answered yet
    page_seconds: float = 900  # that a page is kept for after its browser has gone: it may come back
    resume_seconds: float = 30  # that a run goes on for a page whose connection was cut

    def largest(self, field: str) -> int | None:
        """The largest value of a numeric field of Params here. None: what Params allows."""
        return {"max_new_tokens": self.max_new_tokens, "alternatives": self.alternatives}.get(field)

    def check(self, prompt: object, params: Params) -> None:
        """ValueError for what Params allows and this server does not: one sentence, as of Params."""
        for field in ("max_new_tokens", "alternatives"):
            check_number(field, getattr(params, field), self.largest(field))
        for field, text in (("prompt", prompt), ("system", params.system)):
            if isinstance(text, (str, list)) and len(text) > self.prompt_characters:
                what = "characters" if isinstance(text, str) else "token ids"
                raise ValueError(
                    f"{field} must have at most {self.prompt_characters:,} {what}, not {len(text):,}"
                )


LOCAL = Limits()
HOSTED = replace(
    LOCAL,
    hosted=True,
    trace_bytes=2 * MIB,
    body_bytes=256 * 1024,
    prompt_characters=20_000,
    max_new_tokens=1_000,
    alternatives=10,
    waiting=120,
    waiting_of_address=100,  # a lecture hall may have one address
    run_seconds=60,
    load_seconds=300,
)
