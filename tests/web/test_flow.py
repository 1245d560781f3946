"""What a long run costs: on the wire, in the browser, in the engine. Prints its figures. Times have
wide bounds, since other programs can disturb them."""

import time

import pytest

from specdemo import Params, load_pair, stream
from specdemo.ui.page.frame import scripts_path
from tests.web.screen import (
    choose,
    inspector,
    number,
    run,
    saved,
    set_field,
    unfold,
    wait_for_rounds,
    wait_for_state,
)

pytestmark = pytest.mark.slow
PROMPT = "Once upon a time"
TOKENS = 1_000
AGAIN = 2  # times that runs with and without the page take turns

WATCH = """() => {
  window.tasks = [];
  const watch = new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.tasks.push(task.duration);
  });
  watch.observe({ type: "longtask" });
}"""


class Meter:
    """What a page costs its browser from here until it is read."""

    def __init__(self, page):
        self.page, self.bytes = page, 0
        self.session = page.context.new_cdp_session(page)
        self.session.send("Network.enable")
        self.session.send(
            "Performance.enable", {"timeDomain": "threadTicks"}
        )  # processor time, whatever else the machine does
        self.session.on("Network.dataReceived", self._received)
        self.browser = page.context.browser.new_browser_cdp_session()
        page.evaluate(WATCH)
        self.before = self._now()

    def _received(self, event) -> None:
        self.bytes += event["dataLength"]

    def _now(self) -> dict[str, float]:
        metrics = {
            metric["name"]: metric["value"]
            for metric in self.session.send("Performance.getMetrics")["metrics"]
        }
        processes = self.browser.send("SystemInfo.getProcessInfo")["processInfo"]
        return metrics | {"bytes": self.bytes, "browser": sum(process["cpuTime"] for process in processes)}

    def read(self) -> dict[str, float]:
        """Seconds; "longest" in ms, 0 where no task took 50 ms."""
        spent = {name: value - self.before.get(name, 0) for name, value in self._now().items()}
        return spent | {"longest": self.page.evaluate("Math.max(0, ...window.tasks)")}


def table(capsys, title: str, rows: dict[str, str]) -> None:
    with capsys.disabled():
        print(f"\n\n{title}")
        for name, value in rows.items():
            print(f"  {name:<46} {value}")


def prepared(page, tokens: int) -> None:
    """Sampling without filters, and going on after the end of a story."""
    choose(page, "Sampler", "multinomial")
    unfold(page, "Ending")
    page.get_by_label("Continue past").check()
    set_field(page, "Max new tokens", tokens)
    set_field(page, "Prompt", PROMPT)


@pytest.fixture(scope="module")
def thousand(visit_for_all, url):
    """A page whose run of 1,000 tokens, each with five alternatives, has just ended; its costs, its trace."""
    page = visit_for_all(url, still=True)
    prepared(page, TOKENS)
    run(page, seed=1, max_new_tokens=2)  # the pair is there, and the page is warm
    meter = Meter(page)
    start = time.perf_counter()
    run(page, seed=7, max_new_tokens=TOKENS)
    page.wait_for_timeout(200)
    return page, meter.read() | {"run": time.perf_counter() - start}, saved(page)


def test_a_thousand_tokens(thousand, capsys):
    page, spent, trace = thousand
    table(
        capsys,
        f"{TOKENS:,} tokens with five alternatives, gamma {trace.params.gamma}, {len(trace.rounds)} rounds",
        {
            "on the wire, bytes a token": f"{spent['bytes'] / TOKENS:,.0f} (at most 1,200)",
            "main thread, s": f"{spent['TaskDuration']:.2f} (goal 2.5: half a core; fails at 20)",
            "of it scripts, style, layout, s": " ".join(
                f"{spent[f'{name}Duration']:.2f}" for name in ("Script", "RecalcStyle", "Layout")
            ),
            "all of the browser's processes, s": f"{spent['browser']:.2f}",
            "longest task, ms": f"{spent['longest']:.0f} (goal 100; 0 is below 50)",
            "the run took, s": f"{spent['run']:.1f}",
            "tokens/s by the engine's clock": f"{trace.stats.tokens_per_second:.0f}",
        },
    )
    assert trace.stats.tokens == TOKENS
    assert all(len(token.top) >= 5 for one in trace.rounds for token in one.draft if token.u is not None)
    # A slow run comes in more messages, each with its numbers.
    messages = min(len(trace.rounds), 10 * spent["run"])
    assert 100 * TOKENS <= spent["bytes"] <= 1_200 * TOKENS + 1_500 * max(0, messages - 100)
    assert spent["TaskDuration"] < 20  # the longest task also has the time of other programs


def test_every_token_is_there_and_answers(thousand):
    page, _, trace = thousand
    assert page.locator(".stage [data-round]").count() == sum(
        len(one.draft) + (one.next is not None) for one in trace.rounds
    )
    answers_within(page, 60)


def answers_within(page, seconds: float) -> float:
    start = time.perf_counter()
    page.locator(".stage [data-fate=accepted] > b").last.hover()
    inspector(page).locator(".verdict").get_by_text("Accepted: ").wait_for()
    page.locator(".stage [data-fate=rejected] > b").last.hover()
    inspector(page).locator(".verdict").get_by_text("Rejected: ").wait_for()
    took = time.perf_counter() - start
    assert took < seconds
    return took


def test_a_run_can_be_read_while_it_goes_on(visit, endless, capsys):
    page = visit(endless, still=True)
    prepared(page, 30 * TOKENS)  # it is stopped before
    meter = Meter(page)
    page.get_by_role("button", name="Generate").click()
    wait_for_rounds(page, 200)
    during = answers_within(page, 120)
    page.get_by_role("button", name="Stop").click()
    wait_for_state(page, "ended")
    spent = meter.read()
    start = time.perf_counter()
    page.get_by_role("button", name="discarded").click()
    page.locator('.stage [data-fate="discarded"]').first.wait_for()
    filtered = time.perf_counter() - start
    table(
        capsys,
        f"{number(page, 'tokens')} tokens of a tiny pair, as fast as it goes",
        {
            "two tokens inspected while it runs, s": f"{during:.2f}",
            "the discarded shown, s": f"{filtered:.2f}",
            "main thread, s": f"{spent['TaskDuration']:.2f}",
            "longest task, ms": f"{spent['longest']:.0f}",
            "tokens/s by the engine's clock": number(page, "tokens_per_second"),
        },
    )
    assert filtered < 60


def test_more_elements_than_a_call_can_have_arguments(visit, bare):
    page = visit(bare, still=True)
    counts = page.evaluate(
        """async (scripts) => {
          const { makeText } = await import(new URL(`${scripts}/view/text.js`, document.baseURI));
          const { makeTimeline } = await import(new URL(`${scripts}/view/timeline.js`, document.baseURI));
          const [stage, strip] = [document.createElement("div"), document.createElement("div")];
          const each = (make) => Array.from({ length: 130_000 }, (_, index) => make(index));
          const text = makeText(stage);
          text.add(each((id) => ({ id, text: " a", fate: "prompt" })));
          text.reflow();
          text.add([{ id: 0, text: "\\n".repeat(130_000), fate: "prompt" }]);
          const timeline = makeTimeline(strip, { jump() {}, point() {} });
          timeline.add(each((index) => ({ index, draft: [], next: null, draft_ms: 1, verify_ms: 1 })));
          return [stage, strip].map((part) => part.querySelectorAll("[data-token], .newline, .mark").length);
        }""",
        scripts_path(),
    )
    assert counts == [260_001, 130_000]


def test_what_the_page_costs_the_engine(visit, url, capsys):
    """Tokens/s by the engine's clock, with the page open and of `stream` alone in this process."""
    how = {"gamma": 4, "temperature": 0.8, "top_p": 1.0, "ignore_eos": True, "max_new_tokens": 200, "seed": 7}
    page, pair = visit(url, still=True), load_pair()
    prepared(page, how["max_new_tokens"])
    run(page, seed=1, max_new_tokens=2)
    watched, alone = [], []
    for _ in range(AGAIN):
        run(page, seed=how["seed"], max_new_tokens=how["max_new_tokens"])
        watched.append(saved(page).stats.tokens_per_second)
        with stream(pair, PROMPT, Params(**how)) as going:
            for _ in going:
                pass
            alone.append(going.trace.stats.tokens_per_second)
    table(
        capsys,
        f"tokens/s by the engine's clock, the best of {AGAIN} runs (the browser is on the same machine)",
        {
            "with the page open": f"{max(watched):.0f}",
            "stream() alone, in a process of its own": f"{max(alone):.0f}",
            "the page costs": f"{1 - max(watched) / max(alone):.1%} (goal 5 %, fails at 80 %)",
        },
    )
    assert max(watched) > max(alone) / 5
