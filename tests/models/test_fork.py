"""Why two greedy texts part: on targets whose rounding is chosen, and with faults planted in the engine."""

import copy
import json
import re
from dataclasses import asdict, replace

import pytest
import torch

import specdemo.session as session
import specdemo.trials.fork as forks
from specdemo import PairError, Params, load_pair
from specdemo.engine.rules import speculative
from specdemo.engine.sampling import Sampler
from specdemo.runtime.cache import PositionalCache
from specdemo.runtime.weights import in_float32
from specdemo.servers.pair import ServedPair
from specdemo.trials.fork import Candidate, Fork, Rounding, Said, find_fork, verdict_on
from tests.models.test_cli import run
from tests.tiny import greedy, noisy, tiny, tokenizer

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
GREEDY = Params(temperature=0.0, max_new_tokens=40, seed=0)
UNIT = 1 + torch.finfo(torch.bfloat16).eps


def pair_of(dtype=torch.bfloat16):
    target = tiny("llama", seed=3).to(dtype)
    return load_pair(target=target, drafter=noisy(target))


def tied_pair():
    """A pair whose target finds two tokens as likely as each other, wherever one of them is. In 16 bits a
    forward of several rows gives the one with the higher id a logit that is a unit of rounding larger."""
    pair = pair_of()
    text = greedy(copy.deepcopy(pair.target).float(), PROMPT, 12)
    low = next(token for token in text if token not in PROMPT)
    high = next(token for token in range(low + 1, 96) if token not in text + PROMPT)
    with torch.no_grad():
        pair.target.lm_head.weight[high] = pair.target.lm_head.weight[low]

    def tie(_, given, output):
        logits = output.logits
        is_moved = logits.shape[1] > 1 and logits.dtype == torch.bfloat16
        logits[..., high] = logits[..., low] * (UNIT if is_moved else 1)

    pair.target.register_forward_hook(tie)
    return pair, low, high


@pytest.mark.parametrize("is_biased", [False, True])
def test_two_tokens_that_are_as_likely_part_by_rounding(is_biased):
    pair, low, high = tied_pair()
    bias = {low: 50, high: 50} if is_biased else None
    before = copy.deepcopy(pair.target.state_dict())
    report = find_fork(pair, PROMPT, replace(GREEDY, logit_bias=bias))
    fork = report.fork
    assert report.verdict == "rounding" and (fork.plain.id, fork.speculative.id) == (low, high)
    assert report.compared == fork.place < 40 and fork.rows == 5
    one, several, own, exact = fork.said
    assert one.likeliest.id == low and one.largest == one.plain and one.margin == 0
    assert several.likeliest.id == high and several.largest == several.speculative and several.margin < 0
    assert own.margin < 0, "the model's own forward has several rows, too"
    assert exact.margin == exact.apart == 0 and exact.forward == "float32"
    assert fork.rounding.rows > 0 and fork.rounding.float32 > 0 and fork.rounding.not_float32 is None
    assert json.loads(json.dumps(asdict(report)))["fork"]["plain"] == {"id": low, "text": ""}
    after = pair.target.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_token_that_a_grammar_forbids_is_no_likelier_one():
    pair, low, high = tied_pair()
    pair.tokenizer = tokenizer()
    both = re.escape("".join(pair.tokenizer.decode([one]) for one in (low, high)))
    report = find_fork(pair, PROMPT, replace(GREEDY, regex=f"[{both}]{{40}}"))
    assert report.verdict == "rounding" and report.fork.plain.id == low and report.fork.speculative.id == high
    assert {said.likeliest.id for said in report.fork.said} <= {low, high}


def test_where_float32_cannot_be_had_the_rest_decides(monkeypatch):
    pair, *_ = tied_pair()
    monkeypatch.setattr(forks, "free_memory", lambda device: 0)
    report = find_fork(pair, PROMPT, GREEDY)
    fork = report.fork
    assert report.verdict == "rounding" and "in the model's own forward" in report.sentence
    assert [said.forward for said in fork.said] == ["one row", "several rows", "own"]
    assert fork.rounding.float32 is None and "there is not so much memory" in fork.rounding.not_float32


def test_rounding_does_not_explain_a_candidate_that_is_clearly_worse():
    """Each forward is within rounding of the expected one, and yet both together are not enough."""
    tokens = Candidate(1, ""), Candidate(2, "")
    rounding = Rounding(places=8, rows=0.5, float32=0.5, not_float32=None, unit=0.1, allowed=1.0)

    def fork(clear):
        said = [
            Said("one row", 10.0, 9.0, 1.0, tokens[0], 10.0, apart=0.9),
            Said("several rows", 9.4, 9.5, -0.1, tokens[1], 9.5, apart=0.9),
            Said("float32", 10.0, 10.0 - clear, clear, tokens[0], 10.0, apart=0.0),
        ]
        return Fork(3, "", *tokens, rows=5, said=said, rounding=rounding)

    assert verdict_on(fork(clear=0.9))[0] == "rounding"
    verdict, sentence = verdict_on(fork(clear=1.4))
    assert verdict == "fault" and sentence.startswith(
        "A fault: in float32 one of the candidates is 1.4 below"
    )


def shifted(self, layer_idx=0):
    """The position of a forward's first token; of several tokens in the middle of a text, one too many."""
    return self.lm.start + (len(self.lm.positions) > 1 and int(self.lm.start) > 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_forward_of_several_rows_that_is_wrong_is_a_fault(monkeypatch, dtype):
    """It is not measured by itself: what it differs by from a forward of one row would explain anything."""
    pair = pair_of(dtype)
    monkeypatch.setattr(PositionalCache, "get_seq_length", shifted)
    report = find_fork(pair, PROMPT, GREEDY)
    assert report.verdict == "fault"
    assert report.sentence.startswith("A fault: in the forward of several rows a logit is ")
    one, several, *_ = report.fork.said
    assert one.apart <= report.fork.rounding.allowed < several.apart
    if dtype == torch.float32:
        assert report.fork.rounding.not_float32 == "the target computes in float32 itself"


def accepts_all(p, q, drafted, u_accept, u_next):
    return speculative(p, q, drafted, torch.where(u_accept.isinf(), u_accept, -1.0), u_next)


def test_a_token_that_the_verdict_should_not_have_kept_is_a_fault(monkeypatch):
    pair = pair_of()
    monkeypatch.setattr(session, "rule_of", lambda params: accepts_all)
    report = find_fork(pair, PROMPT, GREEDY)
    assert report.verdict == "fault"
    assert report.sentence.startswith("A fault: the speculative text has a token whose logit is ")
    one, several, *_ = report.fork.said
    assert one.likeliest == several.likeliest == report.fork.plain


def altered_decoders(monkeypatch, alter):
    """Calls `alter` with the number of the run, its Params and its decoder, before the run begins."""
    made, right = [], session.decoder_of

    def decoder_of(pair, started, is_over):
        made.append(right(pair, started, is_over))
        alter(len(made), started.params, made[-1])
        return made[-1]

    monkeypatch.setattr(session, "decoder_of", decoder_of)


def test_a_text_that_ends_before_the_other_is_a_fault(monkeypatch):
    def end_early(number, params, decoder):
        decoder.emitter.stop.room -= 5 * (params.draft_with != "none")

    altered_decoders(monkeypatch, end_early)
    report = find_fork(pair_of(torch.float32), PROMPT, GREEDY)
    assert report.verdict == "fault" and "one of the texts ends here" in report.sentence
    assert report.compared == report.fork.place == 35 and report.fork.speculative is None
    assert report.fork.plain is not None and report.fork.said == []


def test_a_plain_text_that_cannot_be_written_again_is_a_fault(monkeypatch):
    pair, *_ = tied_pair()

    def forget(number, params, decoder):
        if number == 3:
            pair.target.lm_head.weight.data.neg_()

    altered_decoders(monkeypatch, forget)
    report = find_fork(pair, PROMPT, GREEDY)
    assert report.verdict == "fault" and "wrote another text when it was run again" in report.sentence


@torch.no_grad()
def test_a_copy_in_float32_has_the_same_numbers():
    model = tiny("gpt2", tie_word_embeddings=True).bfloat16()
    exact, ids = in_float32(model, "cpu"), torch.tensor([PROMPT])
    assert torch.equal(exact(ids).logits, copy.deepcopy(model).float()(ids).logits)
    assert exact.lm_head.weight is exact.transformer.wte.weight
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@torch.no_grad()
def test_the_model_s_own_forwards_say_the_same_of_the_same_places():
    model, ids = tiny("gemma3"), [*PROMPT, *PROMPT]
    own, by_one_row = forks._own_logits(model, ids, 5), forks._own_by_one_row(model, ids, 5)
    assert own.shape == by_one_row.shape == (5, 96)
    assert torch.allclose(own, model(torch.tensor([ids])).logits[0, -5:], atol=1e-4)
    assert torch.allclose(own, by_one_row, atol=1e-4)


def test_logits_are_penalised_by_the_text_before_each_place():
    sampler = Sampler(Params(temperature=0.0, frequency_penalty=1.0), prompt_tokens=2)
    scores = forks._scores(sampler, [1, 2, 3, 3, 4], torch.zeros(3, 6))
    assert scores.tolist() == [[0, 0, 0, -1, 0, 0], [0, 0, 0, -2, 0, 0], [0, 0, 0, -2, -1, 0]]


def test_what_a_float32_model_s_own_forwards_differ_by_is_not_all_rounding():
    """transformers' own forwards of some recurrent models differ by a third of a unit."""
    own = torch.full((4, 6), 8.0)
    found = forks._rounding(own, own + 0.3, None, None, torch.float32)
    assert found.rows == pytest.approx(0.3) and found.allowed < 0.01
    assert forks._rounding(own, own + 0.3, None, None, torch.bfloat16).allowed == pytest.approx(0.6)


def test_what_cannot_be_compared_is_refused():
    served = ServedPair.__new__(ServedPair)
    with pytest.raises(PairError, match="a server cannot be asked why texts part"):
        find_fork(served, PROMPT, GREEDY)
    with pytest.raises(ValueError, match="temperature must be 0, since greedy texts are compared, not 0.8"):
        find_fork(pair_of(), PROMPT, Params())


def test_the_command_finds_no_fork_in_float32(capsys):
    status, out, _ = run(capsys, "fork", "Once upon a time", "--max-new-tokens", "24")
    *readable, last = out.splitlines()
    report = json.loads(last)
    assert status == 0 and readable == [report["sentence"]]
    assert (report["schema"], report["verdict"], report["fork"]) == ("specdemo.fork/1", "none", None)
    assert report["compared"] == 24 and report["params"]["temperature"] == 0
    assert report["pair"]["dtype"]["target"] == "float32"


def test_the_command_ends_with_1_after_a_fault(capsys, monkeypatch):
    """Of quantised weights there are no others in float32."""
    monkeypatch.setattr(session, "rule_of", lambda params: accepts_all)
    options = ["--pair", "embedded-poor", "--max-new-tokens", "24", "--quantize", "int8"]
    options += ["--dtype", "bfloat16"]
    status, out, _ = run(capsys, "fork", "Once upon a time", *options)
    report = json.loads(out.splitlines()[-1])
    assert status == 1 and report["verdict"] == "fault"
    assert "Float32 was not compared: the target's weights are quantised." in out
    fork = report["fork"]
    assert f"The texts part at token {fork['place'] + 1}, after “" in out
    rows = [line.split("  ") for line in out.splitlines() if "Verifying, 5 rows" in line]
    assert len(rows) == 1 and f"{fork['said'][1]['margin']:.4f}" in rows[0]
    assert fork["before"].startswith("Once upon a time") and fork["plain"]["text"]
