"""Under which names the page answers, and to pages of which sites."""

import socket

import pytest
from starlette.datastructures import Headers

from specdemo.ui.front.checks import Hosts, NotLetIn, host_name

PRIVATE = Hosts("127.0.0.1", (), hosted=False, behind_proxy=False)


def status(hosts: Hosts, host: str, origin: str | None = None, forwarded: str | None = None) -> int:
    told = {"host": host, "origin": origin, "x-forwarded-host": forwarded}
    try:
        hosts.check(Headers({name: value for name, value in told.items() if value is not None}))
    except NotLetIn as refused:
        return refused.status
    return 200


LAB = Hosts("127.0.0.1", ("Lab.example.", "FD00::0001"), hosted=False, behind_proxy=False)
BOUND = Hosts("10.1.2.3", (), hosted=False, behind_proxy=False)
EVERYWHERE = [Hosts(bound, (), hosted=False, behind_proxy=False) for bound in ("0.0.0.0", "::", "0")]
PROXY = Hosts("127.0.0.1", ("lab.example",), hosted=False, behind_proxy=True)
HOSTED = Hosts("0.0.0.0", (), hosted=True, behind_proxy=True)
NAMED = Hosts("0.0.0.0", ("lab.example",), hosted=True, behind_proxy=True)
LOCAL, ON_LAB = "localhost:7860", "lab.example:7860"


@pytest.mark.parametrize(
    ("hosts", "let_in_for", "refused_for"),
    [
        (
            PRIVATE,
            ["127.0.0.1:7860", "LOCALHOST", "[::1]:7860", "[0:0::1]:7860", "page.localhost:80"],
            [
                "evil.example",
                "localhost.evil.example",
                "10.1.2.3:7860",
                "",
                "[::2]",
                "[::1",
                "u@localhost@evil",
            ],
        ),
        (BOUND, ["10.1.2.3:7860", "localhost:1"], ["10.1.2.4:7860", "other.example"]),
        (LAB, ["lab.example", "LAB.example.:7860", "[fd00::1]:7860", "localhost."], ["other.example"]),
        *(
            (one, ["192.168.1.7:7860", "[fe80::1]:7860", socket.gethostname()], ["evil.example"])
            for one in EVERYWHERE
        ),
        (HOSTED, ["any.example"], []),
        (NAMED, ["lab.example"], ["any.example"]),
    ],
)
def test_under_which_names_it_answers(hosts, let_in_for, refused_for):
    assert {status(hosts, host) for host in let_in_for} == {200}
    assert {status(hosts, host) for host in refused_for} <= {403}


def test_a_host_of_which_no_address_can_be_made_is_refused():
    for host in ("999.999.999.999", "[::g]", "a b", "a/b"):
        assert status(HOSTED, host) == status(HOSTED, "right.example", forwarded=host) == 400
    for host in ("localhost:7860", "[::1]:80", "10.0.0.1", "a_b.example", ""):
        assert status(HOSTED, host) == status(HOSTED, "right.example", forwarded=host) == 200
    assert (status(HOSTED, "a, b"), status(HOSTED, "a", forwarded="a, b")) == (400, 200), (
        "proxies write lists"
    )
    with pytest.raises(NotLetIn, match="host is missing"):
        PRIVATE.check(Headers())


PORT = "http://localhost:3000"
# How it is reached, what a proxy tells, and pages of which sites may use it then, and of which not.
ORIGINS = [
    (PRIVATE, LOCAL, None, ["http://LOCALHOST:7860"], ["http://evil.example:7860", "null", ""]),
    (PRIVATE, LOCAL, None, [], [PORT, "http://localhost", "http://127.0.0.1:7860", "http://localhost:x"]),
    (PRIVATE, LOCAL, None, [], ["chrome-extension://localhost:7860"]),
    # The usual ports need not be written, and a name that is let in has its own.
    (PRIVATE, "localhost", None, ["http://localhost:80"], []),
    (PRIVATE, "localhost:443", None, ["https://localhost"], []),
    (LAB, LOCAL, None, ["https://lab.example"], []),  # of a proxy that passes another Host on
    (LAB, ON_LAB, None, ["http://lab.example.:7860"], ["http://lab.example:3000"]),
    # A proxy may tell the name only where there is one, and only one that is known.
    (PROXY, LOCAL, "lab.example:8443", ["https://lab.example:8443"], []),
    (PRIVATE, LOCAL, "lab.example:8443", [], ["https://lab.example:8443"]),
    (PROXY, LOCAL, "lab.example", [], ["https://evil.example"]),
    (PROXY, LOCAL, "lab.example, evil.example", [], ["https://evil.example", None]),
    # It may leave out the port, but not tell another.
    (PROXY, LOCAL, None, [], [PORT]),
    (PROXY, LOCAL, "localhost", [PORT], []),
    (PROXY, "localhost", None, [PORT], []),
    (PROXY, LOCAL, "localhost:8080", [], [PORT]),
    (HOSTED, "any.example", None, ["https://other.example"], []),
    (NAMED, "lab.example", None, ["https://lab.example"], ["https://other.example"]),
]


@pytest.mark.parametrize(("hosts", "host", "forwarded", "right", "wrong"), ORIGINS)
def test_pages_of_which_sites_may_use_it(hosts, host, forwarded, right, wrong):
    assert {status(hosts, host, origin, forwarded) for origin in right} <= {200}
    assert {status(hosts, host, origin, forwarded) for origin in wrong} <= {403}


def test_what_is_no_name_or_address_cannot_be_let_in():
    names = ("", "*.example", ".", "lab..example", "lab.example:8443", "https://lab.example", "lab.example/")
    addresses = ("[fd00::1]", "fd00::g", "999.999.999.999", "10.1", "b\xfccher.example", "a b")
    for text in names + addresses:
        with pytest.raises(ValueError, match="^must be the name or address of a host"):
            host_name(text)
