"""Under which names the page answers, and to pages of which sites."""

import socket

import pytest

from specdemo.ui.front.checks import Hosts, NotLetIn, host_name

PRIVATE = Hosts("127.0.0.1", (), hosted=False, behind_proxy=False)


def let_in(hosts: Hosts, host: str, origin: str | None = None, forwarded: str | None = None) -> bool:
    headers = [(b"host", host.encode())]
    headers += [(b"origin", origin.encode())] if origin is not None else []
    headers += [(b"x-forwarded-host", forwarded.encode())] if forwarded is not None else []
    try:
        hosts.check(headers)
    except NotLetIn as refused:
        assert refused.status == 403
        return False
    return True


@pytest.mark.parametrize(
    ("host", "right"),
    [
        *((host, True) for host in ("127.0.0.1:7860", "LOCALHOST", "[::1]:7860", "page.localhost:80")),
        *((host, False) for host in ("evil.example:7860", "localhost.evil.example", "10.1.2.3:7860", "")),
        *((host, False) for host in ("[::2]:7860", "user@localhost:7860@evil.example", "[::1")),
    ],
)
def test_a_private_page_answers_to_loopback_names_and_to_no_others(host, right):
    assert let_in(PRIVATE, host) is right


def test_two_host_headers_are_both_looked_at():
    with pytest.raises(NotLetIn, match="not known as 'evil.example'; --allow-host lets in more names"):
        PRIVATE.check([(b"host", b"localhost"), (b"host", b"evil.example")])


def test_the_name_that_it_listens_on_and_those_that_are_given():
    hosts = Hosts("10.1.2.3", ("Lab.example",), hosted=False, behind_proxy=False)
    assert let_in(hosts, "10.1.2.3:7860") and let_in(hosts, "lab.example") and let_in(hosts, "localhost:1")
    assert not let_in(hosts, "10.1.2.4:7860") and not let_in(hosts, "other.example")


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "0"])
def test_one_that_listens_everywhere_answers_to_any_address_and_to_the_machines_name(bound):
    hosts = Hosts(bound, (), hosted=False, behind_proxy=False)
    assert let_in(hosts, "192.168.1.7:7860") and let_in(hosts, "[fe80::1]:7860")
    assert let_in(hosts, f"{socket.gethostname()}:7860") and not let_in(hosts, "evil.example")


@pytest.mark.parametrize(
    ("origin", "right"),
    [
        ("http://LOCALHOST:7860", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("http://evil.example:7860", False),
        ("http://127.0.0.1:7860", False),
        ("null", False),
        ("chrome-extension://localhost:7860", False),
        ("", False),
        ("http://localhost:x", False),
    ],
)
def test_only_its_own_pages_may_use_a_private_page(origin, right):
    assert let_in(PRIVATE, "localhost:7860", origin) is right


def test_the_usual_ports_need_not_be_written_and_a_name_that_is_let_in_has_its_own():
    hosts = Hosts("127.0.0.1", ("lab.example",), hosted=False, behind_proxy=False)
    assert let_in(PRIVATE, "localhost", "http://localhost:80")
    assert let_in(PRIVATE, "localhost:443", "https://localhost")
    assert let_in(hosts, "localhost:7860", "https://lab.example"), "a proxy that passes another Host on"
    assert let_in(hosts, "lab.example:7860", "http://lab.example:7860")
    assert not let_in(hosts, "lab.example:7860", "http://lab.example:3000")


def test_a_proxy_may_tell_the_name_only_where_there_is_one_and_only_one_that_is_known():
    behind = Hosts("127.0.0.1", ("lab.example",), hosted=False, behind_proxy=True)
    asked = ("localhost:7860", "https://lab.example:8443", "lab.example:8443")
    assert let_in(behind, *asked) and not let_in(PRIVATE, *asked)
    assert not let_in(behind, "localhost:7860", "https://evil.example", "lab.example")
    for name in ("evil.example", "lab.example, evil.example"):
        assert not let_in(behind, "localhost:7860", "https://evil.example", name), "a proxy for any name"
        assert not let_in(behind, "localhost:7860", None, name)


def test_a_proxy_may_leave_out_the_port_but_not_tell_another():
    behind = Hosts("127.0.0.1", (), hosted=False, behind_proxy=True)
    assert not let_in(behind, "localhost:7860", "http://localhost:3000")
    assert let_in(behind, "localhost:7860", "http://localhost:3000", "localhost")
    assert let_in(behind, "localhost", "http://localhost:3000")
    assert not let_in(behind, "localhost:7860", "http://localhost:3000", "localhost:8080")


def test_the_dot_at_the_end_of_a_name_does_not_count():
    hosts = Hosts("127.0.0.1", ("Lab.example.", "FD00::0001"), hosted=False, behind_proxy=False)
    assert let_in(hosts, "lab.example", "https://lab.example.") and let_in(hosts, "lab.example.:7860")
    assert let_in(hosts, "[fd00::1]:7860", "http://[fd00::1]:7860") and let_in(hosts, "localhost.")
    assert let_in(PRIVATE, "[0:0::1]:7860")


def test_what_is_no_name_or_address_cannot_be_let_in():
    names = ("", "*.example", ".", "lab..example", "lab.example:8443", "https://lab.example", "lab.example/")
    addresses = ("[fd00::1]", "fd00::g", "999.999.999.999", "10.1", "b\xfccher.example", "a b")
    for text in names + addresses:
        with pytest.raises(ValueError, match="^must be the name or address of a host without scheme, port"):
            host_name(text)


def test_a_hosted_page_answers_to_all_unless_names_are_given():
    hosts = Hosts("0.0.0.0", (), hosted=True, behind_proxy=True)
    assert let_in(hosts, "any.example", "https://other.example")
    given = Hosts("0.0.0.0", ("lab.example",), hosted=True, behind_proxy=True)
    assert let_in(given, "lab.example", "https://lab.example")
    assert not let_in(given, "any.example") and not let_in(given, "lab.example", "https://other.example")
