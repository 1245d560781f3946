"""What stays loaded, what goes when memory is short, and who waits for what."""

import threading
import time
import weakref

import pytest

from specdemo import PairError, Params, load_pair, stream
from specdemo.loading.catalog import EMBEDDED
from specdemo.loading.pool import Residents
from specdemo.loading.request import resolve
from specdemo.runtime.device import memory_of
from tests.tiny import tiny, tokenizer

PROMPT = "the cat sat"


@pytest.fixture
def three(tmp_path):
    """Three requests of the same size."""
    target = tiny(vocab_size=304)
    for name in ("one", "two", "three"):
        target.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    return [dict(target=str(tmp_path / name)) for name in ("one", "two", "three")]


def room_for(pairs, request):
    return pairs * load_pair(**request).bytes_held.target * 1.1 / memory_of("cpu")


def test_a_resident_pair_is_not_loaded_again(three):
    residents = Residents(room_for(3, three[0]))
    first = residents.get(**three[0])
    assert residents.get(**three[1]) is not first
    assert residents.get(**three[0]) is first
    assert residents.get(**three[0], dtype="bfloat16") is not first
    assert residents.held() == sum(pair.bytes_held.target for pair in residents.pairs.values())


def test_the_least_recently_used_goes_first_and_gives_its_memory_back(three):
    residents = Residents(room_for(2, three[0]))
    models = [weakref.ref(residents.get(**request).target) for request in three[:2]]
    residents.get(**three[0])  # now the second is the least recently used
    residents.get(**three[2])
    assert models[0]() is not None and models[1]() is None
    assert residents.get(**three[0]).target is models[0]()
    assert len(residents.pairs) == 2


def test_after_a_run_a_pair_still_gives_its_memory_back(three):
    residents = Residents(0)
    for _ in range(2):
        pair = residents.get(**three[0])
        run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=5, draft_with="lookup"))
        list(run)
        model, trace = weakref.ref(pair.target), run.trace
        del pair, run
        residents.get(**three[1])
        assert model() is None and trace.finish


def test_a_running_pair_is_not_evicted(three):
    residents = Residents(0)
    pair = residents.get(**three[0])
    run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=5, draft_with="none"))
    next(run)
    residents.get(**three[1])
    assert residents.get(**three[0]) is pair
    run.close()
    residents.get(**three[2])
    assert list(residents.pairs.values())[0] is not pair and len(residents.pairs) == 1


def test_a_request_that_fails_leaves_the_residents_as_they_are(three, tmp_path):
    residents = Residents(room_for(1, three[0]))
    pair = residents.get(**three[0])
    for request in (
        dict(target=str(tmp_path / "missing")),
        dict(**three[1], quantize="int3"),
        dict(name="nobody"),
        dict(**three[1], dtype="x"),
    ):
        with pytest.raises(PairError):
            residents.get(**request)
    assert residents.get(**three[0]) is pair


def test_a_pair_is_the_same_however_its_request_is_put(three, tmp_path, monkeypatch):
    residents, path = Residents(), three[0]["target"]
    pair = residents.get(target=path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(path)
    ways = [
        dict(target=other)
        for other in (f"{path}/", "one", "./one/", tmp_path / "one", f"{path}/../one", "link")
    ]
    ways += [
        dict(target=path, **more)
        for more in (dict(dtype="auto"), dict(quantize="none"), dict(quantize={"target": "none"}))
    ]
    ways += (
        [dict(target=path, device=device) for device in (None, "cpu", {"target": "cpu"})]
        if pair.info.device == "cpu"
        else []
    )
    assert all(residents.get(**way) is pair for way in ways) and pair.info.target == path
    for other in (
        dict(target=path, dtype="bfloat16"),
        dict(target=path, quantize="int8"),
        dict(target=path, drafter=path),
    ):
        assert residents.get(**other) is not pair


@pytest.mark.slow
def test_a_name_and_its_directory_are_named_as_asked():
    if not EMBEDDED.is_dir():
        pytest.skip("the embedded pair is not there")
    residents, places = Residents(), dict(target=EMBEDDED / "target", drafter=EMBEDDED / "drafter")
    assert residents.get() is residents.get("embedded") is not residents.get(**places)
    assert residents.get(**places).info.target == str(EMBEDDED / "target")


def test_a_pair_that_is_there_can_be_had_while_another_loads(three):
    residents = Residents()
    pair = residents.get(**three[0])
    with residents.loading:
        assert residents.get(**three[0]) is pair


def test_two_who_ask_at_once_get_one_pair_and_both_are_told(three):
    residents, pairs, told = Residents(), [], ([], [])

    def ask(k: int):
        pairs.append(residents.get(**three[0], report=lambda *step: told[k].append(step)))

    with residents.loading:
        threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        while len(residents.told) < 2:
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert pairs[0] is pairs[1] and told[0] == told[1] and len(told[0]) > 3 and not residents.told
    assert told[0][0] == ("Reading the models' configs", None) and told[0][-1] == (
        "Timing a step of each model",
        None,
    )


def test_a_pair_that_nobody_waits_for_any_more_is_not_loaded():
    residents = Residents()
    with pytest.raises(PairError, match="nobody waits"):
        residents.have(resolve("embedded"), wanted=lambda: False)
    assert residents.resident(resolve("embedded")) is None
