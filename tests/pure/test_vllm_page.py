"""vLLM servers in the place of pairs: what the page offers, asks for and measures, against stand-ins."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdemo import Params
from specdemo.errors import PairError
from specdemo.events import Started
from specdemo.events.trace import Trace
from specdemo.servers.client import ServerError
from specdemo.servers.rounds import round_of
from specdemo.servers.vllm import chunk_of
from specdemo.ui.page import links
from specdemo.ui.page.hints import hints
from specdemo.ui.runs.board import FollowedRun
from specdemo.ui.runs.instruments import measurement_request, race_of
from specdemo.ui.runs.limits import HOSTED, LOCAL, Visitor
from specdemo.ui.runs.measuring import measure
from specdemo.ui.runs.models import Choice, Given, Models, Servers
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.run import follow
from specdemo.ui.view import settings
from specdemo.ui.view.settings import FIRST, choice_of, params_from_controls, visible
from specdemo.ui.view.texts import describe_pair
from tests.pure.test_following import messages
from tests.runs_served import served_trace
from tests.stand_ins.vllm import BreakOff, StandIn, slowly

USUAL = {"name": None, "target": None, "drafter": None, "device": "cpu", "dtype": None, "quantize": None}
GREEDY = Params(temperature=0, max_new_tokens=8, seed=1)
DRAFTING = {"before_chunk": slowly(0.02)}
ALONE = {"rounds": [(id_,) for id_ in range(5, 13)], "gamma": None, "before_chunk": slowly(0.02)}
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def servers():
    drafting, alone = StandIn(**DRAFTING), StandIn(**ALONE)
    with drafting.serving() as one, alone.serving() as other:
        yield (drafting, alone), [one, other]


@pytest.fixture
def two(servers):
    """A server that drafts, one of the same model that does not, and their addresses."""
    (drafting, alone), _ = servers
    drafting.behave(**DRAFTING)
    alone.behave(**ALONE)
    return servers


def models_with(*urls: str, limits=LOCAL, **default) -> Models:
    return Models(USUAL | default, limits, servers=[Given(url, "the-key") for url in urls])


def host(url: str) -> str:
    return f"Server {url.removeprefix('http://')}"


def test_given_servers_are_chosen_by_name_and_the_first_one_is_the_default(two):
    _, urls = two
    models = models_with(*urls, urls[0])
    assert models.names[:3] == [host(urls[0]), host(urls[1]), "embedded"]
    assert models.default == host(urls[0])
    assert [entry["name"] for entry in models.listed()[:3]] == models.names[:3]
    assert models.loaded(Choice()) is None
    pair = models.get()
    assert models.loaded(Choice()) is pair and models.get(Choice(host(urls[0]))) is pair
    assert models.get(Choice(host(urls[1]))).server.gamma == 0
    assert models_with(urls[0], name="embedded").default == "embedded"
    with pytest.raises(PairError, match="pair must be one of Server 127"):
        models.get(Choice("Server other:8000"))


def test_a_typed_address_is_used_on_an_own_page_and_gets_no_key_of_another(two):
    (drafting, alone), urls = two
    models = models_with(urls[0])
    assert models.get(Choice("embedded", server=urls[1])).server.gamma == 0
    assert set(alone.keys) == {None}
    models.get(Choice("embedded", server=f"{urls[0]}/"))
    assert set(drafting.keys) == {"Bearer the-key"}
    with pytest.raises(PairError, match="must be an address that begins with"):
        models.get(Choice(server="host"))


def test_a_hosted_page_fetches_no_address_of_a_visitor_and_shows_none(two):
    (drafting, _), urls = two
    models = models_with(urls[0], limits=HOSTED)
    with pytest.raises(PairError, match="server cannot be chosen here"):
        models.get(Choice(server=urls[1]))
    assert not drafting.keys and "server" not in settings.names_of(hosted=True)
    pair = models.get(Choice("Server 1"))
    drafting.answers["/v1/completions"] = (500, {}, b"{}")
    told = [*describe_pair(pair, GREEDY), json.dumps(models.listed()), repr(pair.info)]
    with pytest.raises(ServerError) as caught:
        Servers([Given(urls[0])], hosted=True).get("Server 1", (urls[0], None))
    port = urls[0].rpartition(":")[2]
    assert not any(port in text for text in (*told, str(caught.value)))
    with pytest.raises(ServerError, match="Server 1 cannot be reached$"):
        Servers([Given(NOBODY)], hosted=True).get("Server 1", (NOBODY, None))


def test_a_server_that_failed_is_asked_again_what_it_is(two):
    (drafting, _), urls = two
    models = models_with(urls[0])
    pair = models.get()
    pair.failed = True
    drafting.gamma, drafting.accepted = 3, [0, 0, 0]
    assert models.loaded(Choice()) is None
    assert models.get().server.gamma == 3


def values(**changes):
    weights = dict.fromkeys(settings.WEIGHT_CHOICES, settings.AS_STARTED)
    return FIRST | weights | {"pair": "Server host:8000"} | changes


def test_what_the_server_has_chosen_has_no_controls():
    shown = visible(values())
    hidden = {name for name, is_shown in shown.items() if not is_shown}
    assert {"draft_with", "gamma", "gamma_auto", "rule", "confidence", "dtype", "quantize"} <= hidden
    assert shown["pair"] and not visible(values(server="http://host"))["pair"]
    assert visible(values(pair="embedded"))["draft_with"]


def test_what_hidden_controls_hold_is_not_asked_for():
    held = values(gamma=9, draft_with="ngram", rule="lenient", confidence=0.5, gamma_auto=True)
    params = params_from_controls(held)
    assert params == Params(top_p=1.0)  # the first sampler is multinomial
    assert params_from_controls(held | {"pair": "embedded", "gamma_auto": False}).gamma == 9
    assert choice_of(values(server=" http://host "))["server"] == "http://host"
    assert links.read_link("pair=embedded", ["embedded"]).values["server"] == ""


def test_what_is_known_of_a_server_stands_beside_its_control(two):
    _, urls = two
    models = models_with(urls[0])
    held = FIRST | {"pair": models.default, "dtype": "auto", "quantize": "none", "quantize_drafter": "none"}

    def beside(**changes):
        choice = Choice(models.default)
        return hints(held | changes, "Once", models.needs(choice), models.loaded(choice))

    assert "is asked what it is at the first run" in beside()["pair"]
    models.get()
    assert beside()["pair"] == "vLLM 0.32.0 serves stand-in; it drafts up to 2 tokens"
    assert beside(sampler="min-p", min_p=0.1)["min_p"].startswith("⚠ must be 0 here: vLLM does not take")
    assert "⚠" not in beside(sampler="min-p", min_p=0)["pair"]
    assert "refuses more than 20" in beside(alternatives=21)["alternatives"]
    assert "context of 512 tokens" in beside(max_new_tokens=512)["max_new_tokens"]


def joined(asked="run"):
    return RunQueue().join(Visitor("page", "10.0.0.1"), asked)


def told(reports) -> list:
    """All that these reports are, to a visitor."""

    async def play():
        async with aclosing(reports()) as iterated:
            return [report async for report in iterated]

    return asyncio.run(play())


def breaks_off(number, write):
    if number == 3:
        raise BreakOff


def unseen_ticket(monkeypatch, asked):
    """A ticket whose turn is over before the event loop, which is busy until then, has seen that it came."""
    ticket = joined(asked)
    enter = ticket.enter

    def enter_and_wait(*given):
        enter(*given)
        ticket.done.exception(60)

    monkeypatch.setattr(ticket, "enter", enter_and_wait)
    return ticket


def test_what_came_of_a_run_that_failed_at_once_is_told_with_its_error(two, monkeypatch):
    (drafting, _), urls = two
    models = models_with(urls[0])
    models.get()
    drafting.before_chunk = breaks_off

    async def play():
        run, ticket = FollowedRun(LOCAL, GREEDY, lambda trace: ""), unseen_ticket(monkeypatch, "run")
        run.begin(follow(models, ticket, Choice(), "Once", GREEDY))
        return await messages(run)

    [told] = asyncio.run(play())
    assert "broke off" in told["notice"]["text"] and told["ended"]
    assert len(told["update"]["rounds"]) == 3 and told["update"]["finish"] == "error"


def measured(models, wanted, params=GREEDY) -> dict:
    request = measurement_request(wanted, Choice(), "Once", params)
    return json.loads(json.dumps(told(lambda: measure(models, joined("measurement"), request))[-1]))


def test_a_measurement_that_failed_at_once_says_what_was_measured(two, monkeypatch):
    (drafting, _), urls = two
    models = models_with(*urls)
    models.get()
    drafting.before_chunk = breaks_off
    seen = []

    async def play():
        request = measurement_request({"kind": "race"}, Choice(), "Once", GREEDY)
        async with aclosing(measure(models, unseen_ticket(monkeypatch, "measurement"), request)) as reports:
            async for report in reports:
                seen.append({**report})

    with pytest.raises(ServerError, match="broke off"):
        asyncio.run(play())
    assert seen and seen[-1]["state"] == "running" and host(urls[0]) in seen[-1]["whose"]


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["drafting chosen", "alone chosen"])
def test_two_servers_of_one_model_race_by_a_clock_that_begins_with_the_request(two, order):
    _, urls = two
    last = measured(models_with(*(urls[at] for at in order)), {"kind": "race"})
    alone, drafted = last["race"]["lanes"]
    assert alone["title"] == "target alone" and drafted["title"] == f"drafting ({host(urls[0])})"
    assert len(alone["rounds"]) == 8 > len(drafted["rounds"]) == 5
    assert last["race"]["verdict"] == "Identical: 8 of 8 tokens, compared."
    for lane in (alone, drafted):
        arrivals = [one["arrival_ms"] for one in lane["rounds"]]
        assert lane["ms"] == pytest.approx(sum(arrivals), rel=1e-4) and lane["prefill_ms"] > 0


def test_a_race_of_servers_times_what_follows_the_first_token_and_its_header_says_the_same():
    def run(tokens_a_round: int, gamma: int) -> Trace:
        trace = Trace.begin(Started(served_trace().pair, {}, GREEDY, "Once", ()))
        for at, size in enumerate([1] + [tokens_a_round] * (33 // tokens_a_round)):
            read = chunk_of({"choices": [{"text": "a" * size, "token_ids": [5] * size}]})
            trace.add(round_of(at, read, 40.0 if at else 800.0, gamma, True))
        trace.end("length")
        return trace

    names = [SimpleNamespace(name=name) for name in ("alone", "drafting")]
    race = race_of([run(1, 0), run(3, 2)], names)
    assert race["speedup"].startswith("3.00 × as fast")
    assert race["speedup"] in race["head"]["verdict"] and race["head"]["tone"] == "faster"


@pytest.mark.slow
def test_servers_are_compared(two):
    _, urls = two
    last = measured(models_with(*urls), {"kind": "compare", "prompts": "this"})
    rows = {row[0]: row for row in last["comparison"]["rows"]}
    columns = last["comparison"]["columns"]
    drafting = dict(zip(columns, rows[f"drafting ({host(urls[0])})"], strict=True))
    assert set(rows) == {"target alone", f"drafting ({host(urls[0])})"}
    assert drafting["draft ms/round"] == "–" and drafting["same text"] == "5 of 5"
    assert drafting["tokens/round"] == "1.60" and drafting["gamma"] == "2"


def test_what_servers_cannot_show_is_refused_with_the_reason(two):
    (_, alone), urls = two
    for kind in ("race", "compare"):
        with pytest.raises(PairError, match="no other server here does not draft and serves stand-in"):
            measured(models_with(urls[0], NOBODY), {"kind": kind})
    with pytest.raises(PairError, match="A server drafts as it was started"):
        measured(models_with(urls[0]), {"kind": "gamma"})
    alone.model = "another"
    with pytest.raises(PairError, match="no other server here"):
        measured(models_with(*urls), {"kind": "race"})


@pytest.mark.slow
def test_one_token_and_a_text_that_comes_all_at_once_cannot_be_timed(two):
    (drafting, _), urls = two
    with pytest.raises(PairError, match="has sent one token"):
        measured(models_with(*urls), {"kind": "race"}, replace(GREEDY, max_new_tokens=1))
    drafting.behave(at_once=True)
    with pytest.raises(PairError, match="has sent its whole text at once"):
        measured(models_with(*urls), {"kind": "race"})


def test_a_race_that_cannot_begin_leaves_the_line():
    models, queue = models_with(NOBODY), RunQueue()
    request = measurement_request({"kind": "race"}, Choice(), "Once", GREEDY)

    def race():
        ticket = queue.join(Visitor("page", "10.0.0.1"), "measurement", replaces=True)
        return measure(models, ticket, request)

    for _ in range(2):
        with pytest.raises(PairError, match="cannot be reached"):
            told(race)
    assert queue.join(Visitor("page", "10.0.0.1"), "run")


def test_a_key_goes_to_the_address_that_it_was_given_for():
    servers = Servers([Given("http://host:1", "of-http"), Given("https://host:1", "of-https")])
    assert servers.names == ["Server host:1", "Server https://host:1"]
    assert servers.place(None, "https://host:1")[1] == ("https://host:1", "of-https")
    assert servers.place(None, "https://host:2")[1] == ("https://host:2", None)
