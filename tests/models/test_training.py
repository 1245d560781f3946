"""Training on a folder of tiny texts: it learns, resumes exactly, never trains on held-out text."""

import random
import re
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file

from specdemo import Params, generate, load_pair
from specdemo.training import models, optimise
from specdemo.training.__main__ import main
from specdemo.training.card import run_drafter
from specdemo.training.data import BOS, EOS, Rows, encode_documents, read_documents, shared_tokenizer
from specdemo.training.train import heldout_loss

TINY = {
    "layers": 1,
    "hidden": 32,
    "heads": 2,
    "kv-heads": 1,
    "ffn": 64,
    "length": 64,
    "batch": 4,
    "threads": 1,
}


class Killed(BaseException):
    """Like kill -9: no part of the program expects it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with 200 made-up training documents in two files and 20 held-out ones."""
    draw = random.Random(1)
    parts = [["Ana", "Bo", "Cleo"], ["found", "lost", "washed"], ["a kite", "the red cup", "two keys"]]

    def document(i):
        return "\n\n".join(f"{' '.join(map(draw.choice, parts))}. Number {i}." for _ in range(4))

    folder = tmp_path_factory.mktemp("made") / "texts"
    folder.mkdir()
    for name, first, last in [("one.txt", 0, 100), ("two.txt", 100, 200), ("heldout.txt", 200, 220)]:
        (folder / name).write_text(
            "\n<|endoftext|>\n".join(map(document, range(first, last))), encoding="utf-8"
        )
    return folder


@pytest.fixture
def texts(made, tmp_path):
    return shutil.copytree(made, tmp_path / "texts")


@pytest.fixture(scope="module")
def trained(made):
    """A folder with a target and a drafter that have seen little, and with their checkpoints."""
    assert train_tiny("target", made, made.parent, "--tokens", "512") == 0
    assert train_tiny("drafter", made, made.parent, "--tokens", "256", "--distil", "0") == 0
    return made.parent


def copied(trained, folder):
    for name in ("pair", "work"):
        shutil.copytree(trained / name, folder / name)


def train_tiny(command, texts, folder, *more):
    options = {**TINY, "data": texts, "out": folder / "pair", "work": folder / "work"}
    if command == "eagle3":  # whose sizes are its target's
        del options["layers"], options["hidden"]
    sizes = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return main([command, *sizes, *(["--vocab", "300"] if command == "target" else []), *more])


def loss_of(texts, folder):
    model, tokenizer = models.load_trained(folder)
    return heldout_loss(model, encode_documents(tokenizer, read_documents(texts)[1]))


@pytest.mark.slow
def test_loss_falls_and_both_models_load(texts, tmp_path):
    losses = []
    for tokens in (256, 256 * 40):
        assert train_tiny("target", texts, tmp_path, "--tokens", str(tokens)) == 0
        losses.append(loss_of(texts, tmp_path / "pair" / "target"))
    assert losses[1] < losses[0] - 0.8

    drafter = ["--tokens", "1280", "--distil", "1280", "--sampled", "1"]
    assert train_tiny("drafter", texts, tmp_path, *drafter) == 0
    _, target_tokenizer = models.load_trained(tmp_path / "pair" / "target")
    drafter, drafter_tokenizer = models.load_trained(tmp_path / "pair" / "drafter")
    assert drafter_tokenizer.get_vocab() == target_tokenizer.get_vocab()
    assert drafter(input_ids=torch.tensor([[BOS, 5]])).logits.shape == (1, 2, 300)


def killed(monkeypatch, at):
    """The steps that are done. A kill comes before the step `at`, once."""
    steps_done, set_learning_rates = [], optimise.set_learning_rates

    def kill(optimisers, step, steps):
        steps_done.append(step)
        if len(steps_done) == at + 1:
            raise Killed
        set_learning_rates(optimisers, step, steps)

    monkeypatch.setattr(optimise, "set_learning_rates", kill)
    return steps_done


def same_weights(*folders):
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_resuming_after_a_kill_gives_the_same_weights(texts, tmp_path, monkeypatch):
    run = ["--tokens", str(256 * 12), "--every", "0"]  # a checkpoint after every step
    assert train_tiny("target", texts, tmp_path / "whole", *run) == 0
    steps_done = killed(monkeypatch, 7)
    with pytest.raises(Killed):
        train_tiny("target", texts, tmp_path / "killed", *run)
    torch.rand(3)  # a new process would start with another random state
    assert train_tiny("target", texts, tmp_path / "killed", *run) == 0
    assert steps_done == [*range(8), *range(7, 12)]
    assert same_weights(*(tmp_path / name / "pair" / "target" for name in ("whole", "killed")))


@pytest.mark.long
def test_the_card_reports_every_drafter_and_its_commands_make_the_same_weights(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("specdemo.training.card.NEW_TOKENS", 24)
    pair, again = tmp_path / "my pair", tmp_path / "again"
    out = ["--out", str(pair)]
    assert train_tiny("target", texts, tmp_path, *out, "--layers", "2", "--tokens", "2560") == 0
    good = ["--tokens", "1280", "--distil", "512", "--sampled", "1"]
    assert train_tiny("drafter", texts, tmp_path, *out, *good) == 0
    poor = ["--name", "poor", "--tokens", "256", "--distil", "0", "--sampled", "100"]
    assert train_tiny("drafter", texts, tmp_path, *out, *poor) == 0
    head = ["--tokens", "1280", "--steps", "3", "--sampled", "0"]
    assert train_tiny("eagle3", texts, tmp_path, *out, *head) == 0
    assert main(["report", "--data", str(texts), *out, "--prompts", "2"]) == 0

    card = (pair / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+) \| [\d.]+ M \| (\S+) \| (\S+) \|$", card, re.M)
    losses = {name: (float(token), float(letter)) for name, token, letter in found}
    assert list(losses) == ["target", "drafter", "eagle3", "poor"] and losses["target"][0] < losses["poor"][0]
    model, tokenizer = models.load_trained(pair / "target")
    heldout = read_documents(texts)[1]
    encoded = encode_documents(tokenizer, heldout)
    nats = sum(heldout_loss(model, [ids]) * (len(ids) - 1) for ids in encoded)
    assert losses["target"][1] == pytest.approx(nats / len("".join(heldout)), abs=0.001)

    row = (
        r"^\| (drafter|eagle3|poor) \| (greedy|sampled).*? \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \| ([\d.]+) \|"
    )
    rows = re.findall(row, card, re.M)
    drafters = ("drafter", "eagle3", "poor")
    assert [row[:2] for row in rows] == [(one, how) for one in drafters for how in ("greedy", "sampled")]
    for _, _, share, low, high, per_round in rows:
        assert 0 <= float(low) <= float(share) <= float(high) <= 1 <= float(per_round) <= 5
    assert "Greedy, 6 of 6 texts are the same" in card  # two prompts, three drafters
    assert card.count("> **") == 4  # two prompts, greedy and sampled

    commands = re.findall(r"^python -m specdemo.training (.*)$", card, re.M)
    made = [command.split()[0] for command in commands]
    assert made == ["target", "drafter", "eagle3", "drafter", "report"]
    for command in commands[:4]:
        words = [{"DIR": str(texts), str(pair): str(again)}.get(word, word) for word in shlex.split(command)]
        assert main([*words, "--work", str(tmp_path / "work again"), "--threads", "1"]) == 0
    for name in ("target", "drafter", "eagle3", "poor"):
        assert same_weights(pair / name, again / name)


@pytest.mark.slow
def test_every_prompt_has_its_own_seed(trained, monkeypatch):
    monkeypatch.setattr("specdemo.training.card.NEW_TOKENS", 24)
    prompts = ["Ana found", "Bo lost"]
    measured = run_drafter(trained / "pair", "drafter", prompts)["sampled (temperature 0.8, top-p 0.9)"]
    assert len({tuple(sample.ids[:20]) for sample in measured.plain}) == 2
    pair = load_pair(target=str(trained / "pair" / "target"), drafter=str(trained / "pair" / "drafter"))
    for seed, (prompt, sample) in enumerate(zip(prompts, measured.drafting, strict=True)):
        params = Params(gamma=4, temperature=0.8, top_p=0.9, max_new_tokens=24, seed=seed)
        assert generate(pair, prompt, params).output_ids == sample.ids


def test_no_card_is_written_for_models_that_do_not_belong_together(trained, texts, tmp_path, capsys):
    command = ["report", "--data", str(texts), "--out", str(tmp_path / "pair")]
    assert main(command) == 2 and "no trained target" in capsys.readouterr().err
    copied(trained, tmp_path)
    (tmp_path / "pair" / "drafter").rename(tmp_path / "elsewhere")
    assert main(command) == 2 and "no trained drafter" in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(tmp_path / "pair" / "drafter")
    assert train_tiny("target", texts, tmp_path, "--tokens", "768") == 0  # only the budget may change
    capsys.readouterr()
    assert main(command) == 2 and "drafter was trained for another target" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(trained, texts, tmp_path, capsys):
    copied(trained, tmp_path)
    for changes, words in (
        (["--tokens", "512", "--lr", "0.1"], "other settings (lr)"),
        (["--tokens", "256"], "--tokens must be more"),  # fewer than it has seen
        (["--vocab", "301"], "must be 300"),
    ):
        assert train_tiny("target", texts, tmp_path, *changes) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "work" / "target.pt").write_bytes(b"")
    assert train_tiny("target", texts, tmp_path, "--tokens", "512") == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_documents_without_spaces_and_longer_than_the_context(trained, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("specdemo.training.card.NEW_TOKENS", 24)
    copied(trained, tmp_path)
    (texts / "heldout.txt").write_text("word" * 1000, encoding="utf-8")
    command = ["report", "--data", str(texts), "--out", str(tmp_path / "pair"), "--prompts", "1"]
    assert main(command) == 2 and "every held-out document is longer" in capsys.readouterr().err
    (texts / "heldout.txt").write_text("word" * 200 + "\n<|endoftext|>\n" + "word" * 1000, encoding="utf-8")
    assert main(command) == 0
    assert "over the 1 held-out documents" in (tmp_path / "pair" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_model_in_one_file_replaces_a_model_in_several_and_vice_versa(texts, tmp_path, monkeypatch):
    """With files of both, transformers would load whichever it prefers."""
    for name, layers, largest in (("one", "1", "9MB"), ("two", "3", "20KB"), ("three", "1", "9MB")):
        monkeypatch.setattr(models, "LARGEST_FILE", largest)
        work = ["--work", str(tmp_path / name), "--layers", layers, "--tokens", "1"]
        assert train_tiny("target", texts, tmp_path, *work) == 0
        model, _ = models.load_trained(tmp_path / "pair" / "target")
        state = torch.load(tmp_path / name / "target.pt", weights_only=True)["model"]
        assert all(
            torch.equal(value, state[key].bfloat16().float()) for key, value in model.state_dict().items()
        )
        files = len(list((tmp_path / "pair" / "target").glob("*.safetensors")))
        assert files == 1 if largest == "9MB" else files > 1


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_training_learns_the_same(texts, tmp_path):
    """Rows of one shape only, because each shape is compiled on its own; both losses are used."""
    assert train_tiny("target", texts, tmp_path, "--tokens", "2560") == 0
    run = ["--tokens", "2560", "--distil", "2560", "--sampled", "0", "--whole-every", "1"]
    losses = []
    for name, *how in (["plain"], ["compiled", "--compile"]):
        assert train_tiny("drafter", texts, tmp_path, *run, "--name", name, *how) == 0
        losses.append(loss_of(texts, tmp_path / "pair" / name))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)  # bf16, computed in another order
    torch.compiler.reset()  # frees what was compiled


def test_tokenizer_gives_back_any_text(texts, tmp_path):
    shared_tokenizer(tmp_path / "saved", read_documents(texts)[0], 300)
    tokenizer = shared_tokenizer(tmp_path / "saved", [], 300)  # the saved one is loaded
    draw = random.Random(2)
    every = [*range(0xD800), *range(0xE000, 0x110000)]
    anything = "".join(map(chr, draw.choices(every, k=500)))
    for text in ("", " two  spaces , and 's", "<|eos|><|bos|> are plain text", "e\u0301\r\n\t\x00", anything):
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

    assert set(read_documents(texts, "*")[1]) == set(heldout)
    (texts / "heldout.txt").rename(texts / "heldout.md")
    training, heldout = read_documents(texts, "*")
    assert not set(training) & set(heldout) and len(heldout) == 20  # whatever kind of file it is

    (texts / "heldout.md").unlink()
    training, heldout = read_documents(texts)  # without such a file: about 1 % of the 201 documents
    assert 1 <= len(heldout) < 10 and len(training) + len(heldout) == 201 and not set(training) & set(heldout)


def test_a_documents_use_does_not_depend_on_the_choice_of_files(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} {i}" for i in range(2000)))
    training, heldout = read_documents(tmp_path)
    for some in ("one.txt", "two.txt"):
        fewer, evaluated = read_documents(tmp_path, some)
        assert len(evaluated) > 5 and set(fewer) < set(training) and set(evaluated) < set(heldout)


def test_rows_depend_on_the_step_only(texts, tmp_path):
    training, _ = read_documents(texts)
    encoded = encode_documents(shared_tokenizer(tmp_path, training, 300), training)
    rows = Rows(encoded, 64, 4, seed=0)
    several = [rows(step) for step in range(200)]
    assert rows.epoch > 0
    assert torch.equal(Rows(encoded, 64, 4, seed=0)(150), several[150])


WRONG = [
    ("--data no-such-folder", "must be a folder"),
    (f"--data {__file__}", "must be a folder"),
    ("--files *.md", "has no training text"),
    ("--files /etc/*.txt", "must be a pattern"),
    ("--hidden 33", "multiple"),
    ("--hidden 34 --heads 2", "must be even"),
    ("--length 4", "from 8 to 1024"),
    ("--length 1022", "multiple of 4"),
    ("--vocab 4000", "must be at most"),
    ("--vocab 10", "at least 259"),
]
BAD_NUMBERS = [
    ("--tokens", "0", "a whole number from 1 up"),
    ("--lr", "nan", "between 0 and 10"),
    ("--seed", "-1", "a whole number from 0 up"),
    ("--name", "../x", "letters, digits and underscores"),
    ("--name", "target", "not target"),
]


def test_bad_input_is_one_sentence(texts, tmp_path, capsys):
    for index, (arguments, complaint) in enumerate(WRONG):
        assert train_tiny("target", texts, tmp_path / str(index), *arguments.split()) == 2
        message = capsys.readouterr().err
        assert complaint in message and message.count("\n") == 1
    for option, value, allowed in BAD_NUMBERS:
        with pytest.raises(SystemExit) as stop:
            train_tiny("drafter", texts, tmp_path, option, value)
        assert stop.value.code == 2
        message = capsys.readouterr().err
        assert f"argument {option}: must be" in message and allowed in message and value in message


def test_a_loss_that_is_no_number_stops_the_training(texts, tmp_path, monkeypatch, capsys):
    def far_too_high(optimisers, step, steps):
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = 1e30

    monkeypatch.setattr(optimise, "set_learning_rates", far_too_high)
    assert train_tiny("target", texts, tmp_path, "--tokens", "2560") == 2
    assert "choose smaller learning rates" in capsys.readouterr().err
    assert not (tmp_path / "pair" / "target" / "config.json").exists()


@pytest.mark.slow
def test_a_head_is_trained_and_drafts_for_its_target(texts, tmp_path):
    assert train_tiny("target", texts, tmp_path, "--layers", "2", "--tokens", str(256 * 40)) == 0
    run = ["--tokens", str(256 * 25), "--steps", "3", "--sampled", "17000"]
    assert train_tiny("eagle3", texts, tmp_path, *run) == 0

    pair = load_pair(drafter=str(tmp_path / "pair" / "eagle3"))  # its config.json names the target
    assert pair.info.target == str(tmp_path / "pair" / "target")
    rates = []
    for draft_with in ("model", "none"):
        params = Params(draft_with=draft_with, temperature=0, max_new_tokens=60)
        trace = generate(pair, "Ana found", params, measure=False)
        rates.append((trace.output_ids, trace.stats.accepted))
    assert rates[0][0] == rates[1][0] and rates[0][1] > 4  # of 60 tokens; without training none
    assert (
        train_tiny("eagle3", texts, tmp_path, "--tokens", "256", "--length", "16") == 2
    )  # no room for the steps
