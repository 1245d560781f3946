"""How the server ends on a signal: a real process, a client that streams, and an open page."""

import signal
import subprocess
import sys
import time

import pytest
from gradio_client import Client
from gradio_client.client import Job

from tests.web.conftest import ROOT, address_of, tiny_pair

LONG = {"max_new_tokens": 30_000, "ignore_eos": True, "alternatives": 0, "api_name": "/generate"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


# A busy machine may take longer to read the answers than visitors have.
PATIENT = """
import sys
import app
from specdemo.ui.page import serve

serve.RUN_PATIENCE = serve.ANSWER_PATIENCE = 20
app.end(app.main(sys.argv[1:]))
"""


@pytest.fixture
def app(pair):
    """The app's process."""
    command = [sys.executable, "-c", PATIENT, "--port", "0", *pair]
    app = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        yield app
    finally:
        app.kill()
        app.wait()


def asked(url: str) -> Job:
    """A client's run that goes on or waits in line."""
    job = Client(url, verbose=False).submit("the cat sat", **LONG)
    while not job.outputs():
        time.sleep(0.05)
    return job


def seconds_to_end(app: subprocess.Popen, number: int) -> float:
    before = time.monotonic()
    app.send_signal(number)
    app.wait(60)
    return time.monotonic() - before


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_server_while_a_page_is_open(app, visit, number):
    url = address_of(app)
    page = visit(url)
    job, waiting = asked(url), asked(url)
    took = seconds_to_end(app, number)
    print(f"{number.name}: ended after {took:.2f} s")
    assert app.returncode == 0
    assert took < 10  # 0.6 s on an idle machine; 12 s when the server waited for the page
    trace = job.result(timeout=60)["trace"]
    assert trace["finish"] == "cancelled" and trace["rounds"]
    with pytest.raises(Exception, match="The server is being closed"):
        waiting.result(timeout=60)
    page.close()
    page.broken.clear()  # its server has gone


STUCK = """
import time
from specdemo.ui.page.serve import ended_by_signals
with ended_by_signals() as ended:
    print("running", flush=True)
    ended.get()
    print("ending", flush=True)
    time.sleep(600)  # as if a run did not end
"""


def test_a_second_interrupt_ends_it_at_once():
    with subprocess.Popen([sys.executable, "-c", STUCK], cwd=ROOT, stdout=subprocess.PIPE, text=True) as app:
        for said in ("running", "ending"):
            assert app.stdout.readline().strip() == said
            app.send_signal(signal.SIGINT)
        assert app.wait(60) == -signal.SIGINT


FINALIZED = """
import os, signal, sys
import app
from specdemo.ui.runs.models import Models

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))  # the handler runs before this ends

def get(models, get=Models.get):
    Finalized()
    return get(models)

Models.get = get
app.end(app.main(["--port", "0", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_a_signal_that_comes_in_a_finalizer_while_the_pair_loads_is_not_lost(pair):
    """An exception that the handler had raised there would have been ignored."""
    assert subprocess.run([sys.executable, "-c", FINALIZED, *pair], cwd=ROOT, timeout=100).returncode == 0
