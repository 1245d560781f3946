"""The training script on a folder of tiny texts: it learns, resumes exactly, keeps held-out text apart and explains bad input."""

import random
import re
import shlex
import shutil

import pytest
import torch

from specdemo.training import report, train
from specdemo.training.__main__ import main
from specdemo.training.data import BOS, EOS, Rows, encode_documents, read_documents, shared_tokenizer

TINY = {"layers": 1, "hidden": 32, "heads": 2, "kv-heads": 1, "ffn": 64, "length": 64, "batch": 4, "threads": 1}


class Killed(BaseException):
    """Stands for kill -9: nothing in the program expects it."""


@pytest.fixture
def texts(tmp_path):
    """A folder with 200 made-up training documents in two files and 20 held-out ones."""
    draw = random.Random(1)

    def document(i):
        names, verbs, things = ["Ana", "Bo", "Cleo"], ["found", "lost", "washed"], ["a kite", "the red cup", "two keys"]
        return "\n\n".join(f"{draw.choice(names)} {draw.choice(verbs)} {draw.choice(things)}. Number {i}." for _ in range(4))

    folder = tmp_path / "texts"
    folder.mkdir()
    for name, first, last in [("one.txt", 0, 100), ("two.txt", 100, 200), ("heldout.txt", 200, 220)]:
        (folder / name).write_text("\n<|endoftext|>\n".join(map(document, range(first, last))), encoding="utf-8")
    return folder


def train_tiny(command, texts, folder, *more):
    options = {**TINY, "data": texts, "out": folder / "pair", "work": folder / "work"}
    sizes = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return main([command, *sizes, *(["--vocab", "300"] if command == "target" else []), *more])


def weights(folder):
    return train.load(folder)[0].state_dict()


def test_loss_falls_and_both_models_load(texts, tmp_path):
    losses = []
    for name, tokens in [("short", 256), ("long", 256 * 60)]:
        assert train_tiny("target", texts, tmp_path / name, "--tokens", str(tokens)) == 0
        model, tokenizer = train.load(tmp_path / name / "pair" / "target")
        losses.append(train.heldout_loss(model, encode_documents(tokenizer, read_documents(texts)[1])))
    assert losses[1] < losses[0] - 1

    assert train_tiny("drafter", texts, tmp_path / "long", "--tokens", "2560", "--distil", "2560", "--sampled", "1") == 0
    _, target_tokenizer = train.load(tmp_path / "long" / "pair" / "target")
    drafter, drafter_tokenizer = train.load(tmp_path / "long" / "pair" / "drafter")
    assert drafter_tokenizer.get_vocab() == target_tokenizer.get_vocab()
    assert drafter(input_ids=torch.tensor([[BOS, 5]])).logits.shape == (1, 2, 300)


def test_resuming_after_a_kill_gives_the_same_weights(texts, tmp_path, monkeypatch):
    run = ["--tokens", str(256 * 12), "--every", "0"]  # a checkpoint after every step
    assert train_tiny("target", texts, tmp_path / "whole", *run) == 0

    steps_done = []

    def kill_during_step_8(optimisers, step, steps):
        steps_done.append(step)
        if step == 7 and len(steps_done) == 8:
            raise Killed
        set_rates(optimisers, step, steps)

    set_rates = train.set_rates
    monkeypatch.setattr(train, "set_rates", kill_during_step_8)
    with pytest.raises(Killed):
        train_tiny("target", texts, tmp_path / "killed", *run)
    torch.rand(3)  # a new process would start with another random state
    assert train_tiny("target", texts, tmp_path / "killed", *run) == 0

    assert steps_done == [*range(8), *range(7, 12)]
    whole, killed = (weights(tmp_path / name / "pair" / "target") for name in ("whole", "killed"))
    assert all(torch.equal(whole[key], killed[key]) for key in whole)


def test_the_card_reports_every_drafter_and_its_commands_make_the_same_weights(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "NEW_TOKENS", 24)
    assert train_tiny("target", texts, tmp_path, "--tokens", "5120") == 0
    assert train_tiny("drafter", texts, tmp_path, "--tokens", "2560", "--distil", "512", "--sampled", "1") == 0
    assert train_tiny("drafter", texts, tmp_path, "--name", "poor", "--tokens", "256", "--distil", "0", "--sampled", "0") == 0
    there = ["--data", str(texts), "--out", str(tmp_path / "pair"), "--work", str(tmp_path / "work")]
    assert main(["report", *there, "--prompts", "3"]) == 0

    card = (tmp_path / "pair" / "README.md").read_text(encoding="utf-8")
    losses = dict(re.findall(r"^\| (\w+) \| [\d.]+ M \| ([\d.]+) \| [\d.]+ \|$", card, re.M))
    assert list(losses) == ["target", "drafter", "poor"] and float(losses["target"]) < float(losses["poor"])
    rows = re.findall(r"^\| (drafter|poor) \| (greedy|sampled).*? \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| ([\d.]+) \|", card, re.M)
    assert [row[:2] for row in rows] == [(drafter, how) for drafter in ("drafter", "poor") for how in ("greedy", "sampled")]
    for _, _, share, low, high, per_round in rows:
        assert 0 <= float(low) <= float(share) <= float(high) <= 1 <= float(per_round) <= 5
    assert "Greedy, 6 of 6 texts are the same" in card
    assert card.count("> **") == 6  # three prompts, greedy and sampled

    commands = re.findall(r"^python -m specdemo.training (.*)$", card, re.M)
    assert [command.split()[0] for command in commands] == ["target", "drafter", "drafter", "report"]
    again = {"DIR": str(texts), str(tmp_path / "pair"): str(tmp_path / "again")}
    for command in commands[:3]:
        words = [again.get(word, word) for word in shlex.split(command)]
        assert main([*words, "--work", str(tmp_path / "work again"), "--threads", "1"]) == 0
    for name in ("target", "drafter", "poor"):
        first, second = weights(tmp_path / "pair" / name), weights(tmp_path / "again" / name)
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_training_learns_the_same(texts, tmp_path):
    for name, *how in (["plain"], ["compiled", "--compile"]):
        assert train_tiny("target", texts, tmp_path / name, "--tokens", str(256 * 20), *how) == 0
        assert train_tiny("drafter", texts, tmp_path / name, "--tokens", "1280", "--distil", "1280", "--sampled", "0", *how) == 0
    _, heldout = read_documents(texts)
    for role in ("target", "drafter"):
        losses = []
        for name in ("plain", "compiled"):
            model, tokenizer = train.load(tmp_path / name / "pair" / role)
            losses.append(train.heldout_loss(model, encode_documents(tokenizer, heldout)))
        assert losses[1] == pytest.approx(losses[0], rel=0.02)  # bf16, in another order


def test_tokenizer_gives_back_any_text(texts, tmp_path):
    shared_tokenizer(tmp_path / "saved", read_documents(texts)[0], 300)
    tokenizer = shared_tokenizer(tmp_path / "saved", [], 300)  # the saved one is loaded
    draw = random.Random(2)
    every = [*range(0xD800), *range(0xE000, 0x110000)]
    anything = ["".join(map(chr, draw.choices(every, k=30))) for _ in range(50)]
    for text in ["", " two  spaces , and 's", "<|eos|><|bos|> are plain text here", "e\u0301\r\n\t\x00", *anything]:
        ids = tokenizer.encode(text)
        assert ids[0] == BOS and EOS not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_held_out_text_is_never_trained_on(texts):
    copied = (texts / "heldout.txt").read_text(encoding="utf-8").split("<|endoftext|>")[0]
    with open(texts / "one.txt", "a", encoding="utf-8") as file:
        file.write("<|endoftext|>" + copied)  # also when another file repeats it
    training, heldout = read_documents(texts)
    assert (len(training), len(heldout)) == (200, 20)
    assert not set(training) & set(heldout)

    (texts / "heldout.txt").unlink()
    training, heldout = read_documents(texts)  # without such a file: 1 % of the 201 documents
    assert (len(training), len(heldout)) == (199, 2)
    assert read_documents(texts) == (training, heldout)


def test_rows_depend_on_the_step_only(texts, tmp_path):
    encoded = encode_documents(shared_tokenizer(tmp_path, read_documents(texts)[0], 300), read_documents(texts)[0])
    rows = Rows(encoded, 64, 4, seed=0)
    several = [rows(step) for step in range(200)]
    assert rows.epoch > 0
    assert torch.equal(Rows(encoded, 64, 4, seed=0)(150), several[150])


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--data", "no-such-folder"], "does not exist"),
        (["--files", "*.md"], "has no training text"),
        (["--hidden", "33"], "multiple"),
        (["--length", "1022"], "multiple of 4"),
        (["--vocab", "10"], "at least 259"),
    ],
)
def test_bad_input_is_one_sentence(texts, tmp_path, capsys, arguments, complaint):
    assert train_tiny("target", texts, tmp_path, *arguments) == 2
    message = capsys.readouterr().err
    assert complaint in message and message.count("\n") == 1


def test_bad_numbers_are_refused(texts, tmp_path, capsys):
    for option, value, allowed in [
        ("--tokens", "0", "a whole number from 1 up"),
        ("--lr", "nan", "between 0 and 10"),
        ("--seed", "-1", "a whole number from 0 up"),
        ("--name", "../x", "letters, digits and underscores"),
        ("--name", "target", "not target"),
    ]:
        with pytest.raises(SystemExit) as stop:
            train_tiny("drafter", texts, tmp_path, option, value)
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert f"argument {option}: must be" in message and allowed in message and value in message


def test_a_report_without_a_drafter_is_refused(texts, tmp_path, capsys):
    assert train_tiny("target", texts, tmp_path, "--tokens", "256") == 0
    assert main(["report", "--data", str(texts), "--out", str(tmp_path / "pair")]) == 2
    assert "no trained drafter" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(texts, tmp_path, capsys):
    assert train_tiny("target", texts, tmp_path, "--tokens", "256") == 0
    assert train_tiny("target", texts, tmp_path, "--tokens", "512") == 0  # only the budget may change
    assert train_tiny("target", texts, tmp_path, "--tokens", "512", "--lr", "0.1") == 2
    assert "other settings (lr)" in capsys.readouterr().err
