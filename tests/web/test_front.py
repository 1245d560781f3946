"""What stands between a visitor and the page: whose request it is, under which name, and from which site."""

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from specdemo.ui.runs.limits import HOSTED, LOCAL, visitor_address
from tests.web.conftest import tiny_pair
from tests.web.server import served_here, watched

CALL = "/gradio_api/call/v2/generate"
MCP = "/gradio_api/mcp/"
FOREIGN = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served_here(tmp_path_factory.mktemp("pair"), LOCAL) as (url, _):
        yield url


@pytest.mark.parametrize("headers", [{"Host": "evil.example:7860"}, FOREIGN, {"Origin": "null"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/config"), ("POST", CALL), ("POST", MCP), ("OPTIONS", CALL), ("GET", "/health")],
)
def test_another_site_gets_a_sentence_and_no_permission(url, method, path, headers):
    asked = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
    answer = httpx.request(method, f"{url}{path}", headers=headers | asked, json={"prompt": "Once"})
    assert answer.status_code == 403, answer.text
    assert "access-control-allow-origin" not in answer.headers
    assert len(json.loads(answer.text)["detail"].split(". ")) == 1


def test_the_page_itself_may_do_all_of_it(url):
    own = {"Origin": url}
    assert httpx.get(url, headers=own).status_code == 200
    asked = {"prompt": "Once", "max_new_tokens": 1}
    assert httpx.post(f"{url}{CALL}", json=asked, headers=own).status_code == 200
    assert httpx.get(url.replace("127.0.0.1", "localhost")).status_code == 200


@pytest.mark.parametrize(("limits", "address"), [(LOCAL, "127.0.0.1"), (HOSTED, "8.8.8.8")])
def test_who_a_visitor_is_comes_from_a_header_only_behind_a_proxy(tmp_path, monkeypatch, limits, address):
    """On connections from this machine, where a web server of one's own would stand."""
    seen, read = [], visitor_address

    def spy(client, headers, behind_proxy):
        seen.append(read(client, headers, behind_proxy))
        return seen[-1]

    monkeypatch.setattr("specdemo.ui.runs.limits.visitor_address", spy)
    limits = limits.__class__(**{**vars(limits), "behind_proxy": limits is HOSTED})
    with served_here(tmp_path, limits) as (url, _):
        asked = {"prompt": "Once", "max_new_tokens": 1}
        forwarded = {"X-Forwarded-For": "8.8.8.8:1234", "X-Forwarded-Proto": "https"}
        assert httpx.post(f"{url}{CALL}", json=asked, headers=forwarded).status_code == 200
    assert seen and set(seen) == {address}


@pytest.mark.slow
def test_a_proxy_for_other_addresses_does_not_keep_the_page_from_starting(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with watched(tmp_path, *tiny_pair(tmp_path)) as server:
        assert httpx.get(server.url, trust_env=False).status_code == 200


def test_a_page_that_answers_slowly_at_first_starts_all_the_same(tmp_path, monkeypatch):
    """As on a busy machine. Gradio would ask for the page and give up after 3 s."""
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)
    with served_here(tmp_path, LOCAL) as (url, _):
        assert httpx.get(url).status_code == 200


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::", pytest.param("0:0::1", marks=pytest.mark.long)])
def test_it_listens_on_an_ipv6_address(tmp_path, host):
    with watched(tmp_path, *tiny_pair(tmp_path), "--host", host) as server:
        port = urlsplit(server.url).port
        assert server.url == f"http://[{host}]:{port}"
        url = f"http://[::1]:{port}"
        asked = {"prompt": "Once", "max_new_tokens": 1}
        assert httpx.get(url).status_code == 200
        assert httpx.post(f"{url}{CALL}", json=asked, headers={"Origin": url}).status_code == 200
        assert httpx.get(url, headers={"Host": f"evil.example:{port}"}).status_code == 403
