"""The real app in a process of its own, and the system's Chromium to look at it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import httpx
import pytest
from gradio_client import Client

from specdemo.events import Next, Round, Stats
from specdemo.events.trace import Trace, pieces
from specdemo.loading.catalog import EMBEDDED
from tests.web.forked import QUIET, Forked, slow_runs

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "assets" / "traces" / "first.json"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")  # the lightest first
PATIENCE = 120_000  # ms; machines that run tests are busy
SAID: dict[str, list[str]] = {}  # what each server said, by its page's address
for _part in ("connect", "read", "write", "pool"):  # of httpx, for gradio_client, too; usually 5 s
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, PATIENCE / 1000)

# Texts that would do something if a page took them for more than text. The tiny pair's tokenizer has them as
# tokens.
HOSTILE = (
    "<img src=x onerror=\"window.hit='img'\">",
    "${window.hit='dollar'}",
    "{{constructor.constructor('window.hit=1')()}}",
    "</script><script>window.hit='script'</script>",
    "`+(window.hit='tick')+`",
    "</textarea></style><svg onload=\"window.hit='svg'\">",
    "[click](javascript:window.hit='link') ![](x) **bold** $x^2$",
    "ab\u202ecd\u2066ef\u2069gh",
    "nul\0nul",
)


def executable() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def launch_flags() -> list[str]:
    """For a Chromium in a container that makes no requests of its own."""
    quiet = "disable-quic disable-background-networking disable-component-update disable-sync"
    return [f"--{flag}" for flag in ("no-sandbox", "disable-gpu", "no-first-run", *quiet.split())]


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    """In an interpreter of its own; what it says is in its `stderr`."""
    command = [sys.executable, "app.py", "--port", "0", *arguments]
    environment = {**os.environ, **QUIET, **environment}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def fork(*arguments: str, change: Callable[[], None] | None = None, **environment: str) -> Forked:
    """The same, forked. change: see Forked."""
    with TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "stderr")
        os.mkfifo(pipe)
        app = Forked(arguments, pipe, environment, change=change)
        app.stderr = open(pipe)  # noqa: SIM115  (it waits for the other end)
        return app


@contextmanager
def serving(*arguments: str, change: Callable[[], None] | None = None, **environment: str):
    """The app; gives the address of its page, which is there before the models are. change: see Forked."""
    with ending(fork(*arguments, change=change, **environment)) as url:
        yield url


@contextmanager
def ending(app: subprocess.Popen | Forked):
    """Gives the address of its page, and ends it."""
    try:
        yield address_of(app)
    finally:
        app.terminate()
        app.wait(30)


def address_of(app: subprocess.Popen | Forked) -> str:
    said = []
    for line in app.stderr:
        said.append(line)
        if found := re.search(r"the page is at (http://\S+)", line):
            SAID[found[1]] = said
            # Somebody has to go on reading what it says, or it stops when the pipe is full.
            Thread(target=said.extend, args=(app.stderr,), daemon=True).start()
            return found[1]
    raise RuntimeError(f"the app ended with status {app.wait()} and said:\n{''.join(said)}")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items):
    """What needs a server or a browser is slow. A browser that has waited in vain for PATIENCE is asked once
    more."""
    for item in items:
        needs = set(getattr(item, "fixturenames", ()))
        if needs & {"browser", "url", "bare", "hosted", "endless"}:
            item.add_marker(pytest.mark.slow)
        if "browser" in needs:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=[r"Timeout \d+ms exceeded"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Below a failed test stands what its pages showed, and what the servers have said."""
    report = yield
    if report.failed and report.when == "call":
        browser = item.funcargs.get("browser")
        pages = [page for context in browser.contexts for page in context.pages] if browser else []
        shown = [f"{frame.url}\n{shown_by(frame)}" for page in pages for frame in page.frames]
        report.sections.append(("Pages", "\n".join(shown)))
        said = [f"{url}\n{''.join(lines[-40:])}" for url, lines in SAID.items()]
        report.sections.append(("Servers", "\n".join(said)))
    return report


def shown_by(frame) -> str:
    """The run's state, the controls and the notice, as text."""
    try:
        run = frame.locator(".run").first
        state = run.evaluate("run => JSON.stringify(run.dataset)", timeout=5_000)
        return f"{state}\n{frame.locator('body').inner_text(timeout=5_000)[:3_000]}"
    except Exception as error:
        return str(error).splitlines()[0]


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    """The page over the embedded pair, or where that has not been built over a tiny one."""
    built = (EMBEDDED / "drafter" / "config.json").exists()
    with serving(*([] if built else tiny_pair(tmp_path_factory.mktemp("pair")))) as url:
        yield url


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The page over a tiny pair that writes for minutes, and now and then something hostile: ten rounds a
    second, so that a busy browser can follow it."""
    pair = tiny_pair(tmp_path_factory.mktemp("endless"), HOSTILE)
    with serving(*pair, change=partial(slow_runs, pause=0.1)) as url:
        yield url


@pytest.fixture(scope="session")
def hosted(tmp_path_factory):
    """The page as anyone may visit it, over a tiny pair whose texts end at their limit only."""
    pair = tiny_pair(tmp_path_factory.mktemp("hosted"), layers=4)  # its longest run takes some seconds
    with serving("--hosted", "--behind-proxy", *pair) as url:
        yield url


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """The page without any model: its pair is to come from a hub that takes calls and never answers. No
    test may load another pair there."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        patience = {"HF_HUB_OFFLINE": "0", "HF_HUB_ETAG_TIMEOUT": "3600", "HF_HUB_DOWNLOAD_TIMEOUT": "3600"}
        home = str(tmp_path_factory.mktemp("hub"))
        with serving("--pair", "smollm2-1.7b", HF_ENDPOINT=address, HF_HOME=home, **patience) as url:
            yield url


def tiny_pair(folder: Path, words: tuple[str, ...] = (), layers: int = 2) -> list[str]:
    """words: tokens of its own that the pair knows."""
    from tests.tiny import noisy, tiny, tokenizer

    tokens = tokenizer(eos=None)
    tokens.add_tokens(list(words))
    shape = {"vocab_size": len(tokens), "num_hidden_layers": layers, "max_position_embeddings": 32_768}
    target = tiny("llama", **shape)
    for role, model in (("target", target), ("drafter", noisy(target))):
        model.save_pretrained(folder / role)
        tokens.save_pretrained(folder / role)
    return ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]


@pytest.fixture(scope="session")
def generated(url):
    """generated(prompt, **params): the trace of such a run, from the API."""
    client = Client(url, verbose=False)
    return lambda prompt, **params: Trace.from_json(
        json.dumps(client.predict(prompt, api_name="/generate", **params)["trace"])
    )


@pytest.fixture(scope="session")
def every_fate(tmp_path_factory) -> tuple[Path, Trace]:
    """A trace with tokens of every fate: the recorded run, and some rounds in which nothing was drafted."""
    run = Trace.load(RECORDED)
    trace = with_rounds(run, (*run.rounds, *map(undrafted, run.rounds[:9])))
    file = tmp_path_factory.mktemp("fates") / "every.json"
    trace.save(file)
    return file, trace


def with_rounds(run: Trace, rounds: Iterable[Round]) -> Trace:
    """The run with these rounds in place of its own, all counted anew."""
    trace = replace(run, rounds=[], output_ids=[], text="", stats=Stats())
    for index, one in enumerate(rounds):
        trace.add(replace(one, index=index))
    return trace


def undrafted(one: Round) -> Round:
    """The same round as if nothing had been drafted in it."""
    nothing = {"draft": (), "gamma": None}
    return replace(one, **nothing, next=sampled(one.next), emitted=(one.next.id,))


def sampled(token: Next) -> Next:
    """The same token as if nothing had been drafted: there is no q anywhere."""
    top = tuple((token_id, text, p, None, raw_p, None) for token_id, text, p, _, raw_p, _ in token.top)
    return replace(token, source="sampled", q=None, raw_q=None, residual_mass=None, top=top)


@pytest.fixture(scope="session")
def hostile(every_fate):
    """A trace with such a text wherever a trace has text."""
    (_, trace), texts = every_fate, cycle(HOSTILE)

    def rewritten(token):
        top = tuple((token_id, next(texts), *numbers) for token_id, _, *numbers in token.top)
        return replace(token, text=next(texts), top=top)

    rounds = [
        replace(one, draft=tuple(map(rewritten, one.draft)), next=one.next and rewritten(one.next))
        for one in trace.rounds
    ]
    evil = HOSTILE[0]
    return replace(
        trace,
        rounds=rounds,
        text="".join(piece for one in rounds for piece in pieces(one)),
        prompt="".join(HOSTILE),
        pair=replace(trace.pair, target=evil, drafter=evil, device=evil, device_name=evil),
        versions={evil: evil},
        params=replace(trace.params, stop=("never", HOSTILE[3]), system=evil, chat=True),
        error=evil,
    )


@pytest.fixture(scope="session")
def browser():
    if executable() is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)} is on the PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=launch_flags())
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def desk(browser):
    """One browser, which caches the page's scripts. The server takes each tab for another visitor."""
    return browser.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )


def listening(page):
    """The same page. `page.requested` collects the addresses that it requests, `page.broken` its errors."""
    page.requested, page.broken = [], []
    page.on("request", lambda request: page.requested.append(request.url))
    page.on("pageerror", lambda error: page.broken.append(str(error)))
    page.on("console", lambda said: page.broken.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: (page.broken.append(dialog.message), dialog.dismiss()))
    page.set_default_timeout(PATIENCE)
    return page


@contextmanager
def visiting(desk):
    """Gives visit(url, still, first), which opens a tab and waits until it can be used. still: the reader
    prefers no motion. first: as a newcomer sees it, who has begun nothing yet. Of what `listening` keeps no
    error may be left at the end."""
    pages = []

    def visit(url: str, still: bool = False, context=desk, first: bool = False):
        page = listening(context.new_page())
        pages.append(page)
        page.emulate_media(reduced_motion="reduce" if still else "no-preference")
        page.goto(url)
        page.locator("#go").wait_for()
        page.locator('.run:not([data-state="empty"])').wait_for()  # the scripts are there
        if not first:
            page.evaluate("document.querySelector('.run').removeAttribute('data-first')")
        return page

    yield visit
    for page in pages:
        page.close()
    assert [page.broken for page in pages] == [[] for _ in pages]


@pytest.fixture
def visit(desk):
    with visiting(desk) as visit:
        yield visit


@pytest.fixture(scope="module")
def visit_for_all(desk):
    """As `visit`, for pages that a module's tests share."""
    with visiting(desk) as visit:
        yield visit


@pytest.fixture(scope="module")
def shared(visit_for_all, url):
    """A page for the tests that set all they need."""
    return visit_for_all(url, still=True)


@pytest.fixture(scope="module")
def reading(visit_for_all, bare):
    """For all who read or wait: the server's pair never comes."""
    return visit_for_all(bare, still=True)


@pytest.fixture
def page(visit, url):
    return visit(url)
