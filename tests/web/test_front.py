"""What stands between a visitor and the page: whose request it is, under which name, and from which site."""

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from specdemo.ui.runs.limits import LOCAL, visitor_address
from tests.web.conftest import tiny_pair
from tests.web.server import served_here, watched

CALL = "/gradio_api/call/v2/generate"
MCP = "/gradio_api/mcp/"
FOREIGN = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The addresses that requests came from, as the server takes them."""
    return set()


@pytest.fixture(scope="module")
def url(tmp_path_factory, seen):
    """It starts though a proxy for other addresses is set, and though it answers slowly at first, as on a
    busy machine: Gradio would ask for the page and give up after 3 s."""

    def spy(client, headers, behind_proxy):
        seen.add(visitor_address(client, headers, behind_proxy))
        return visitor_address(client, headers, behind_proxy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradio.networking.url_ok", lambda url: False)
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy"):
            patch.delenv(name, raising=False)
        with served_here(tmp_path_factory.mktemp("pair"), LOCAL) as (url, _):
            patch.undo()
            patch.setattr("specdemo.ui.runs.limits.visitor_address", spy)
            yield url


@pytest.mark.parametrize("headers", [{"Host": "evil.example:7860"}, FOREIGN])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("POST", CALL), ("POST", MCP), ("OPTIONS", CALL), ("GET", "/health")]
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


def test_a_visitor_is_no_one_else_by_a_header(url, seen):
    """On connections from this machine, where a web server of one's own would stand."""
    forwarded = {"X-Forwarded-For": "8.8.8.8:1234", "X-Forwarded-Proto": "https"}
    asked = {"prompt": "Once", "max_new_tokens": 1}
    assert httpx.post(f"{url}{CALL}", json=asked, headers=forwarded).status_code == 200
    assert seen == {"127.0.0.1"}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.long  # a server for one flag
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_an_ipv6_address(tmp_path):
    with watched(tmp_path, *tiny_pair(tmp_path), "--host", "::1") as server:
        port = urlsplit(server.url).port
        url = server.url
        assert url == f"http://[::1]:{port}"
        asked = {"prompt": "Once", "max_new_tokens": 1}
        assert httpx.get(url).status_code == 200
        assert httpx.post(f"{url}{CALL}", json=asked, headers={"Origin": url}).status_code == 200
        assert httpx.get(url, headers={"Host": f"evil.example:{port}"}).status_code == 403
