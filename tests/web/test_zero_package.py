"""The page under Hugging Face's own package `spaces`, in an environment of its own with torch's CUDA build:
what a ZeroGPU Space does before it has a GPU. Only the service that lends GPUs is a stand-in; here is none to
lend, so a run ends where the package first uses one."""

import http.server
import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
from gradio_client import Client

from tests.vllm_server import ROOT, install
from tests.web.conftest import address_of
from tests.web.server import controls_of

TORCH, SPACES = "torch==2.11.0", "spaces==0.51.3"
OWN_PYTHON = "SPECDEMO_ZERO_PYTHON"  # a Python that has both, which spares the installation (4.9 GB)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    if own := os.environ.get(OWN_PYTHON):
        return Path(own)
    folder = tmp_path_factory.mktemp("zero") / "venv"
    subprocess.run(["python3", "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install(python, TORCH, SPACES)
    install(python, "-r", ROOT / "requirements.txt")
    return python


@contextmanager
def lender():
    """The service's answers to the package, and the addresses that the package has asked for."""
    asked: list[SplitResult] = []

    class Lender(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(urlsplit(self.path))
            gpu = {"idle": False, "nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "token"}
            content = json.dumps(gpu if asked[-1].path == "/schedule" else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_): ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lender) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def space(python: Path, service: str) -> subprocess.Popen:
    """The page as a Space starts it."""
    environment = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    environment |= {"SYSTEM": "spaces", "SPACE_ID": "someone/specdemo", "HF_HUB_OFFLINE": "1"}
    environment |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": service}
    command = [python, "app.py", "--port", "0"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_page_starts_with_its_pairs_loaded_and_a_run_asks_for_a_gpu(python):
    with lender() as (service, asked):
        app = space(python, service)
        try:
            url = address_of(app)
            assert [one.path for one in asked] == ["/startup-report"], "what it found on its GPUs has moved"
            until = time.monotonic() + 120
            while (health := httpx.get(f"{url}/health").json())["status"] != "ok":
                assert time.monotonic() < until, health
                time.sleep(0.5)
            with pytest.raises(Exception, match="ZeroGPU lends no GPU now: RuntimeError"):
                Client(url, verbose=False).predict("Once upon a time", api_name="/generate")
            told = run_on_page(url, {"x-ip-token": "of-this-visitor"})
            assert "ZeroGPU lends no GPU now: RuntimeError" in told
            assert [one.path for one in asked[1:]] == ["/schedule", "/allow", "/release"] * 2
            quotas = [one.query for one in asked if one.path == "/schedule"]
            assert ["of-this-visitor" in query for query in quotas] == [False, True]
            assert httpx.get(f"{url}/health").json()["status"] == "ok"
        finally:
            app.terminate()
            assert app.wait(30) == 0


def run_on_page(url: str, headers: dict[str, str]) -> str:
    """What a page is told of the run that it begins with the values that its controls have at first. headers:
    those that Hugging Face's own page has it send."""
    body = {"session": "page", "asked": {"kind": "run"}, "controls": controls_of(url)}
    name = httpx.post(f"{url}/specdemo/runs", json=body, headers=headers, timeout=120).json()["follow"]
    return httpx.get(f"{url}/specdemo/runs/{name}", timeout=120).text
