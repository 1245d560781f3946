"""The adviser on real pairs: what it runs is what would be written anyway, and it ends when it is told to. No
test reads a time."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.cli.main import main
from specdemo.errors import PairError
from specdemo.events.speedup import TimedRound, plain
from specdemo.measure import advise
from specdemo.measure.decide import recommendations
from specdemo.measure.prompts import prompts_of
from specdemo.measure.samples import Text, TimedTurn
from specdemo.measure.settings import field_of
from specdemo.measure.turns import Stopped, run_in_turns
from tests.small import PROMPT, small_model

PARAMS = Params(temperature=0.0, max_new_tokens=40, seed=0, alternatives=0)


@pytest.fixture(scope="module")
def pair():
    return load_pair()


SAMPLED = replace(PARAMS, temperature=0.9, top_p=0.9, seed=7)


@pytest.mark.parametrize(("method", "params"), [("model", PARAMS), ("model", SAMPLED), ("lookup", PARAMS)])
def test_a_run_in_turns_with_plain_rounds_is_the_run(pair, method, params):
    params = replace(params, draft_with=method, gamma=5)
    own, turns = run_in_turns(pair, "Once upon a time", params)
    same = generate(pair, "Once upon a time", params, measure=False)
    assert own.output_ids == same.output_ids and own.finish == same.finish and own.text == same.text
    assert [one.draft for one in own.rounds] == [one.draft for one in same.rounds]
    assert turns and all(one.slow and one.fast for one in turns)
    with pytest.raises(Stopped):
        run_in_turns(pair, "Once upon a time", params, lambda: True)
    assert not pair.lock.locked()


def test_a_target_that_cannot_go_back_is_compared_text_by_text():
    pair = load_pair(target=small_model("qwen3_next"))
    params = replace(PARAMS, draft_with="lookup", gamma=3, max_new_tokens=12, ignore_eos=True)
    own, turns = run_in_turns(pair, PROMPT, params)
    assert len(turns) == 1 and len(turns[0].slow) == 12 and len(turns[0].fast) == len(own.rounds)


def test_what_does_not_fit_is_left_out_with_a_sentence(pair, tmp_path):
    settings, left_out = field_of(pair, ["lookup", "mtp", str(tmp_path)], PARAMS)
    assert [one.name for one in settings] == ["lookup"] and len(left_out) == 2
    assert "mtp" in left_out[0] and str(tmp_path) in left_out[1]
    with pytest.raises(PairError):
        field_of(pair, ["mtp"], PARAMS)
    long = {"own": ["x " * 3000, "Once"]}
    kept, notes = advise.fitting(pair, long, PARAMS)
    assert kept == {"own": ["Once"]} and notes[0].key == "advice_prompts_left_out"
    with pytest.raises(ValueError, match="^prompts? must"):
        advise.fitting(pair, {"own": ["x " * 3000]}, PARAMS)


def in_no_time(pair, prompt, params, is_over):
    """The text is real, and its times made up: each row takes as long as a forward of one."""
    turn = TimedTurn(plain([10.0]), [TimedRound(1, params.gamma, 10.0 * (1 + params.gamma))])
    return Text(generate(pair, prompt, params, measure=False), [turn] * 8)


def test_it_ends_when_it_is_clear_for_all_kinds_of_work_that_no_draft_pays(pair, monkeypatch):
    monkeypatch.setattr(advise, "run_in_turns", in_no_time)
    *_, last = advise.advise(pair, ["lookup"], prompts_of(["story", "chat"]), PARAMS, 1e6, "")
    assert last.measured.ended == "clear" and recommendations(last.measured)[-1].draft_with == "none"
    written = {(one.work, one.prompt) for one in last.measured.samples}
    assert written == {(work, at) for work in ("story", "chat") for at in range(advise.LOOKS[0])}


def test_it_ends_when_the_time_is_up_between_two_texts(pair, monkeypatch):
    seconds = iter(range(10**6))
    monkeypatch.setattr(advise, "run_in_turns", in_no_time)
    monkeypatch.setattr(advise, "perf_counter", lambda: next(seconds))
    *_, last = advise.advise(pair, ["lookup"], prompts_of(["story", "chat"]), PARAMS, 9.0, "")
    assert last.measured.ended == "budget"


@pytest.mark.slow
def test_the_command_ends_with_its_advice_as_json_and_a_report(tmp_path, capsys):
    file, prompts = tmp_path / "a.html", tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "The fox"}\n', encoding="utf-8")
    options = ["--prompts", str(prompts), "--drafters", "lookup", "--budget", "60s", "--report", str(file)]
    assert main(["advise", *options, "--max-new-tokens", "24"]) == 0
    told, err = capsys.readouterr()
    assert "warming up: " in err
    told = json.loads(told.splitlines()[-1])
    own = told["recommendation"]["own"]
    assert list(told["recommendation"]) == ["own", "all"]
    assert set(own) >= {"draft_with", "drafter", "gamma", "speedup", "interval", "reason"}
    assert own["draft_with"] is None, "not known is not none"
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
