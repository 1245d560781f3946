"""vLLM servers in the place of pairs: what the page offers, asks for and measures, against stand-ins."""

import json

import pytest

from specdemo import Params, generate
from specdemo.errors import PairError
from specdemo.servers.client import ServerError
from specdemo.ui.runs.board import FollowedRun
from specdemo.ui.runs.instruments import measurement_request
from specdemo.ui.runs.limits import HOSTED, LOCAL, Visitor
from specdemo.ui.runs.models import Choice, GivenServer, Models
from specdemo.ui.runs.queue import RunQueue
from specdemo.ui.runs.run import follow
from specdemo.ui.view import settings
from specdemo.ui.view.settings import FIRST, params_from_controls, visible
from specdemo.ui.view.texts import describe_pair
from tests.played import played
from tests.pure.test_following import measured, messages
from tests.sentences import refused
from tests.stand_ins.vllm import StandIn, slowly

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
    return Models(USUAL | default, limits, servers=[GivenServer(url, "the-key") for url in urls])


def host(url: str) -> str:
    return f"Server {url.removeprefix('http://')}"


def test_given_servers_are_chosen_by_name(two):
    (drafting, alone), urls = two
    models = models_with(*urls, urls[0])
    assert models.names[:3] == [host(urls[0]), host(urls[1]), "embedded"]
    assert models.default == host(urls[0]) and models.loaded(Choice()) is None
    pair = models.get()
    assert models.loaded(Choice()) is pair and models.get(Choice(host(urls[0]))) is pair
    assert models.get(Choice(host(urls[1]))).server.gamma == 0
    assert set(drafting.keys) == {"Bearer the-key"}
    assert models_with(urls[0], name="embedded").default == "embedded"
    with pytest.raises(PairError, match="^pair "):
        models.get(Choice("Server other:8000"))


def test_a_hosted_page_shows_no_address(two):
    (drafting, _), urls = two
    models = models_with(urls[0], limits=HOSTED)
    pair = models.get(Choice("Server 1"))
    drafting.answers["/v1/completions"] = (500, {}, f'{{"error": "{urls[0]} is down"}}'.encode())
    told = [*describe_pair(pair, GREEDY), json.dumps(models.listed()), repr(pair.info)]
    for url in (urls[0], NOBODY):
        with pytest.raises(ServerError) as caught:
            GivenServer(url, name="Server 1").get()
        told.append(str(caught.value))
        assert not any(url.rpartition("/")[2] in text for text in told)


def test_a_server_that_was_started_anew_ends_a_run_and_is_asked_again_what_it_is(two):
    (drafting, _), urls = two
    models = models_with(urls[0])
    pair = models.get()
    drafting.gamma, drafting.accepted = 3, [0, 0, 0]
    with pytest.raises(ServerError, match="drafts otherwise than when it was asked before"):
        generate(pair, "Once", GREEDY)
    assert models.loaded(Choice()) is None and models.get().server.gamma == 3


def test_what_the_server_has_chosen_has_no_controls_and_is_not_asked_for():
    weights = dict.fromkeys(settings.WEIGHT_CHOICES, settings.AS_STARTED)
    held = FIRST | weights | {"pair": "Server host:8000"}
    shown = visible(held)
    hidden = {name for name, is_shown in shown.items() if not is_shown}
    assert {"draft_with", "gamma", "gamma_auto", "rule", "confidence", "dtype", "quantize"} <= hidden
    assert visible(held | {"pair": "embedded"})["draft_with"]
    held |= {"gamma": 9, "draft_with": "ngram", "rule": "lenient", "confidence": 0.5}
    assert params_from_controls(held) == Params(top_p=1.0)  # the first sampler is multinomial
    assert params_from_controls(held | {"pair": "embedded"}).gamma == 9


def last_of(models, wanted, queue=None) -> dict:
    return measured(models, queue or RunQueue(), measurement_request(wanted, Choice(), "Once", GREEDY))[-1]


@played
async def test_a_run_that_fails_before_the_page_has_seen_it_begin_keeps_its_rounds(two):
    (drafting, _), urls = two
    models, run = models_with(urls[0]), FollowedRun(LOCAL, GREEDY, lambda trace: "")
    ticket = RunQueue().join(Visitor("page", "10.0.0.1"), "run")
    models.get()
    drafting.behave(detailed=True, tells={"per_step_drafted": [3, 1, 2, 2]})
    enter = ticket.enter
    ticket.enter = lambda *given: (enter(*given), ticket.done.exception(60))
    run.begin(follow(models, ticket, Choice(), "Once", GREEDY))
    update = (await messages(run))[-1]["update"]
    assert len(update["rounds"]) == 5 and update["finish"] == "error"


@pytest.mark.slow
def test_two_servers_of_one_model_race_by_a_clock_that_begins_with_the_request_and_are_compared(two):
    (drafting, _), urls = two
    models = models_with(*reversed(urls))
    last = last_of(models, {"kind": "race"})
    alone, drafted = last["race"]["lanes"]
    assert alone["title"] == "target alone" and host(urls[0]) in drafted["title"]
    assert len(alone["rounds"]) == 8 > len(drafted["rounds"]) == 5
    for lane in (alone, drafted):
        arrivals = [one["arrival_ms"] for one in lane["rounds"]]
        assert lane["ms"] == pytest.approx(sum(arrivals), rel=1e-4) and lane["prefill_ms"] > 0
    compared = last_of(models, {"kind": "compare", "prompts": "this"})["comparison"]
    drafting_row = next(row for row in compared["rows"] if host(urls[0]) in row[0])
    assert len(compared["rows"]) == 2 and {"1.60", "5 of 5"} <= {*drafting_row}
    drafting.behave(at_once=True)
    with pytest.raises(PairError, match="whole text at once"):
        last_of(models, {"kind": "race"})


def test_what_servers_cannot_show_is_refused_with_the_reason(two):
    (_, alone), urls, queue = *two, RunQueue()  # each of them leaves its line
    with pytest.raises(PairError, match="cannot be reached"):
        last_of(models_with(NOBODY), {"kind": "race"}, queue)
    for kind in ("race", "compare"):
        with refused("no_plain_server", kind=PairError, name="stand-in"):
            last_of(models_with(urls[0], NOBODY), {"kind": kind}, queue)
    with refused("servers_length", kind=PairError):
        last_of(models_with(urls[0]), {"kind": "gamma"})
    alone.model = "another"
    with refused("no_plain_server", kind=PairError, name="stand-in"):
        last_of(models_with(*urls), {"kind": "race"})


def test_a_key_goes_to_the_address_that_it_was_given_for():
    given = [GivenServer("http://host:1", "of-http"), GivenServer("https://host:1", "of-https")]
    models = Models(USUAL, servers=given)
    assert list(models.servers) == ["Server host:1", "Server https://host:1"]
    assert [one.key for one in models.servers.values()] == ["of-http", "of-https"]
