"""How the server ends on a signal: a real process, a client that streams, and a page's open connection."""

import signal
import time

import httpx
import pytest
from gradio_client import Client
from gradio_client.client import Job

from specdemo.ui.page import serve
from specdemo.ui.page.serve import SIGNALS, ended_by_signals
from tests.web.conftest import address_of, fork, tiny_pair

LONG = {"max_new_tokens": 30_000, "ignore_eos": True, "alternatives": 0, "api_name": "/generate"}


def be_patient() -> None:
    """A busy machine may take longer to read the answers than visitors have."""
    serve.RUN_PATIENCE = serve.ANSWER_PATIENCE = 20


@pytest.fixture
def app(tmp_path):
    """The app's process."""
    app = fork(*tiny_pair(tmp_path), change=be_patient)
    try:
        yield app
    finally:
        app.kill()
        app.wait()


def asked(url: str, until: str) -> Job:
    """A client's run that goes on, if until is "rounds", or stands in line, if it is "waiting"."""
    job = Client(url, verbose=False).submit("the cat sat", **LONG)
    while not job.done() and not any(answer.get(until) for answer in job.outputs()):
        time.sleep(0.05)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_server_while_a_page_is_open(app, number):
    url = address_of(app)
    with httpx.stream("GET", f"{url}/gradio_api/heartbeat/page") as page:
        beats = page.iter_lines()
        assert next(beats)
        job, waiting = asked(url, "rounds"), asked(url, "waiting")
        before = time.monotonic()
        app.send_signal(number)
        assert app.wait(60) == 0
        took = time.monotonic() - before
    print(f"{number.name}: ended after {took:.2f} s")
    # 0.6 s on an idle machine; 12 s when the server waited for the page
    assert took < 10 or number == signal.SIGTERM
    trace = job.result(timeout=60)["trace"]
    assert trace["finish"] == "cancelled" and trace["rounds"]
    with pytest.raises(Exception, match="The server is being closed"):
        waiting.result(timeout=60)


class Finalized:
    """A signal comes while it is finalized, where an exception would be lost."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_is_not_lost_in_a_finalizer_and_a_second_one_ends_the_program_at_once():
    before = signal.getsignal(signal.SIGINT)
    with ended_by_signals() as ended:
        assert signal.getsignal(signal.SIGINT) is not before and ended.empty()
        Finalized()
        assert ended.get(timeout=60) is None
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) is before
