"""The adviser on real pairs: what it runs is what would be written anyway, it ends when it is told to, and it
goes on with what was measured. No test reads a time."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.advise.checks import LENGTHS, check_times
from specdemo.advise.contenders import field_of
from specdemo.advise.page import page_of
from specdemo.advise.report import advice_of, advice_table
from specdemo.advise.results import from_object, to_object
from specdemo.advise.run import LOOKS, Task, advise, begin, fitting
from specdemo.advise.work import prompts_of
from specdemo.cli.main import main
from specdemo.errors import PairError
from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.session import run_in_turns
from tests.small import PROMPT, small_model

PARAMS = Params(temperature=0.0, max_new_tokens=40, seed=0, alternatives=0)
SHORT = replace(PARAMS, max_new_tokens=24)


@pytest.fixture(scope="module")
def pair():
    return load_pair()


@pytest.fixture(scope="module")
def field(pair):
    return field_of(pair, ["model", "lookup", str(ROOT / CATALOGUE["embedded-dflash"].drafter)], PARAMS)


def measured_until(field, works, is_enough, before=None):
    """What is known when enough texts have begun, and these."""
    pair = field.pairs["none"]
    prompts, _ = fitting(pair, prompts_of(works), SHORT)
    begun = []
    known = begin(pair, field.contenders, prompts, SHORT, field.left_out, "advise", before)
    task = Task(field.pairs, prompts, SHORT, budget=1e9)
    for progress in advise(task, known, lambda: is_enough(begun)):
        begun.append(str(progress.doing))
        known = progress.measured
    return known, begun


@pytest.mark.parametrize("params", [PARAMS, replace(PARAMS, temperature=0.9, top_p=0.9, seed=7)])
@pytest.mark.parametrize("name", ["none", "drafter model (embedded)", "lookup"])
def test_a_run_in_turns_with_plain_rounds_is_the_run(field, name, params):
    pair = field.pairs[name]
    params = replace(params, draft_with="lookup" if name == "lookup" else "model", gamma=5)
    own, turns = run_in_turns(pair, "Once upon a time", params)
    same = generate(pair, "Once upon a time", params, measure=False)
    assert own.output_ids == same.output_ids and own.finish == same.finish and own.text == same.text
    assert [one.draft for one in own.rounds] == [one.draft for one in same.rounds]
    assert turns and all(one.slow and one.fast for one in turns)
    cut, _ = run_in_turns(pair, "Once upon a time", params, lambda: True)
    assert cut.finish == "cancelled" and not pair.lock.locked()


def test_another_drafter_shares_the_target_and_its_lock(pair, field):
    head = next(one for name, one in field.pairs.items() if "dflash" in name)
    assert head.target is pair.target and head.lock is pair.lock and head.drafter is not pair.drafter
    both = [generate(one, "The fox", PARAMS, measure=False) for one in (pair, head, pair)]
    assert both[0].output_ids == both[1].output_ids == both[2].output_ids
    assert (head.info.drafter_kind, pair.info.drafter_kind) == ("dflash", "model")


@pytest.mark.slow
def test_it_measures_until_it_is_stopped_and_goes_on_where_it_was(field):
    works = ["story", "chat"]
    first, begun = measured_until(
        field, works, lambda begun: any("chat, prompt 4" in one for one in begun[:-1])
    )
    assert first.ended == "interrupted" and begun.index("done") == len(begun) - 1
    assert {one.work for one in first.samples} == {*works}
    assert {(one.work, one.setting.contender) for one in first.probes} == {
        (work, name) for work in works for name in field.pairs if name != "none"
    }
    read = from_object(json.loads(json.dumps(to_object(first))))
    second, begun = measured_until(field, works, lambda begun: len(begun) > 16, before=read)
    assert second.samples[: len(first.samples)] == first.samples and second.probes == first.probes
    assert len(second.samples) > len(first.samples) and second.checks == first.checks
    assert not any("drafts" in doing for doing in begun), "nothing is probed twice"
    each = Counter((one.work, one.setting) for one in second.samples)
    assert {*each.values()} == {LOOKS[0]}, "a setting counts when it has written all first texts"
    assert "It was interrupted after" in advice_table(advice_of(second))
    chain = next(one for one in second.samples if one.prompt == 0 and one.setting.gamma)
    enough = tuple(replace(chain, work=work, prompt=at) for work in works for at in range(4))
    page = page_of(advice_of(replace(second, samples=enough)))
    assert "llama-server" in page and page.count("<svg") == 3


def test_checks_are_timed_by_their_rows_and_after_texts_that_the_context_has_room_for(pair):
    structured = replace(PARAMS, regex="[a-z ]+")
    found = list(check_times(pair, [5, 6, 7], structured, seconds=0.0))
    assert not any(
        one.context == 64 for times in check_times(pair, [5], PARAMS, 0.0, known=[64]) for one in times
    )
    assert [one.rows for one in found[0]] == [1 + length for length in LENGTHS]
    assert {one.context for times in found for one in times} <= {64, 512}
    assert all(one.ms > 0 and one.low <= one.ratio <= one.high for times in found for one in times)
    assert found[0][0].ratio == 1.0 and not pair.lock.locked()
    assert list(check_times(pair, [5], PARAMS, 1.0, lambda: True)) == []


def test_a_target_that_cannot_go_back_is_compared_text_by_text():
    pair = load_pair(target=small_model("qwen3_next"))
    params = replace(PARAMS, draft_with="lookup", gamma=3, max_new_tokens=12, ignore_eos=True)
    own, turns = run_in_turns(pair, PROMPT, params)
    assert len(turns) == 1 and len(turns[0].slow) == 12 and len(turns[0].fast) == len(own.rounds)
    assert list(check_times(pair, PROMPT, params, 1.0)) == []


def test_what_does_not_fit_is_left_out_with_a_sentence(pair, tmp_path):
    found = field_of(pair, ["lookup", "mtp", str(tmp_path)], PARAMS)
    assert list(found.pairs) == ["none", "lookup"] and len(found.left_out) == 2
    assert found.left_out[0].startswith("mtp is left out: ") and str(tmp_path) in found.left_out[1]
    with pytest.raises(PairError):
        field_of(pair, ["mtp"], PARAMS)
    long = {"own": ["x " * 3000, "Once"]}
    kept, notes = fitting(pair, long, PARAMS)
    assert kept == {"own": ["Once"]} and "1 of 2 prompts left out" in notes[0]
    with pytest.raises(ValueError, match="^prompts? must"):
        fitting(pair, {"own": ["x " * 3000]}, PARAMS)


@pytest.mark.slow
def test_the_command_ends_with_its_advice_as_json_and_a_report(tmp_path, capsys):
    file, prompts = tmp_path / "a.html", tmp_path / "mine.jsonl"
    assert main(["advise", "--target", str(ROOT / CATALOGUE["embedded"].target), "--drafters", "lookup",
                 "--work", "story", "--budget", "10s", "--max-new-tokens", "3"]) == 0  # fmt: skip
    assert "too short to be timed" in capsys.readouterr().out
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "The fox"}\n', encoding="utf-8")
    options = ["--prompts", str(prompts), "--drafters", "lookup", "--budget", "60s", "--report", str(file)]
    assert main(["advise", *options, "--max-new-tokens", "24"]) == 0
    out = capsys.readouterr().out.splitlines()
    told = json.loads(out[-1])
    own = told["recommendation"]["own"]
    assert list(told["recommendation"]) == ["own", "all"]
    assert set(own) >= {"draft_with", "drafter", "gamma", "speedup", "interval", "reason"}
    assert own["draft_with"] is None and "Only 2 prompts" in own["reason"], "not known is not none"
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["advise", "--compare", str(file), str(file)]) == 0
    assert capsys.readouterr().out.count("Only 2 prompts") == 2
