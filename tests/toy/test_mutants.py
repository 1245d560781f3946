"""Small mistakes planted in the engine, one at a time: the tests must find each of them.

`python -m pytest -m long tests/toy/test_mutants.py` plants each mistake in a copy of the package and runs
tests of that copy until one fails. A mistake in QUICK is found by tests of the quick set, one in SLOW by the
whole line."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Mutant:
    """A line of a file under specdemo/, what takes its place, and the tests that have to notice."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str  # of pytest, separated by spaces


LOOP, EXACT, RULES = "tests/toy/test_loop.py", "tests/toy/test_exact_table.py", "tests/pure/test_rules.py"
ENUMERATED, SAMPLING = "tests/toy/test_rules_enumerated.py", "tests/pure/test_sampling.py"
DRAFTERS, LM = "tests/toy/test_drafters.py", "tests/models/test_lm.py tests/models/test_greedy.py"
CONTRACT = "tests/models/test_drafter_contract.py"
LENGTH, OTHER = "tests/toy/test_draft_length.py", "tests/toy/test_other_tokenizer.py"
AHEAD, COMPILED = "tests/models/test_ahead.py", "tests/toy/test_compiled_verdict.py"
GRAMMAR = "tests/toy/test_grammar.py"
EXPERTS = "tests/models/test_experts.py"
TREES, TREES_OF_FOUR = "tests/toy/test_trees.py", "tests/toy/test_trees_enumerated.py"
TREES_READ = "tests/models/test_read_trees.py"

QUICK = [
    # The loop
    Mutant(
        "a draft leaves no room for the target's own token",
        "engine/loop.py",
        "room = self.longest - len(ids) - 1 ",
        "room = self.longest - len(ids) ",
        LOOP,
    ),
    Mutant(
        "each round has the same dice",
        "engine/loop.py",
        "uniforms(self.seed, index,",
        "uniforms(self.seed, 0,",
        EXACT,
    ),
    Mutant(
        "the prefill feeds the last token, too",
        "engine/loop.py",
        "torch.tensor(ids[:-1], dtype=torch.long)",
        "torch.tensor(ids, dtype=torch.long)",
        LOOP,
    ),
    Mutant(
        "the drafter learns after the wrong text",
        "engine/loop.py",
        "self.drafter.learn(ids, verdict.drafted(kept),",
        "self.drafter.learn(ids[:-1], verdict.drafted(kept),",
        f"{DRAFTERS} {LOOP}",
    ),
    Mutant(
        "gamma auto learns nothing",
        "engine/loop.py",
        "        self.length.learn(tokens.accepted, tokens.rejected)\n",
        "",
        LENGTH,
    ),
    # Grammars
    Mutant(
        "the mask forgets the drafts before",
        "engine/grammar.py",
        "else self.after(draft[:k])",
        "else self.after(())",
        GRAMMAR,
    ),
    Mutant(
        "a draft goes on after what is forbidden",
        "engine/grammar.py",
        "mask = None if is_cut else ",
        "mask = ",
        GRAMMAR,
    ),
    Mutant(
        "a draft moves the place before it",
        "engine/grammar_check.py",
        "longer = matcher.deep_copy()",
        "longer = matcher",
        GRAMMAR,
    ),
    Mutant(
        "a grammar binds what is thought",
        "engine/grammar.py",
        "return self.thoughts is not None and self.thoughts.are_open",
        "return False",
        GRAMMAR,
    ),
    Mutant(
        "a thought that ends within a draft goes on to its end",
        "engine/grammar.py",
        "thoughts = place.thoughts and place.thoughts.after(token_id, self.text_of(token_id))",
        "thoughts = place.thoughts",
        GRAMMAR,
    ),
    Mutant(
        "p is not masked",
        "engine/step.py",
        "allowed = masked(logits, value.allowed)",
        "allowed = logits",
        GRAMMAR,
    ),
    Mutant(
        "p is not masked in compiled code",
        "runtime/verdict.py",
        "logits = row_of(given.allowed, i, width)",
        "logits = row_of(given.logits, i, width)",
        GRAMMAR,
    ),
    Mutant(
        "q is not masked",
        "engine/draft.py",
        "sampler.sample(shaped, u_token,",
        "sampler.sample(logits, u_token,",
        GRAMMAR,
    ),
    # Rules
    Mutant(
        "accepted by q/p",
        "engine/rules.py",
        "return p_drafted / q.gather(1, drafted[:, None])[:, 0]",
        "return q.gather(1, drafted[:, None])[:, 0] / p_drafted",
        RULES,
    ),
    Mutant(
        "the replacement is drawn from p",
        "engine/rules.py",
        "*_from_residual(p_next - q_next, p_next, u_next))",
        "*_from_residual(p_next, p_next, u_next))",
        ENUMERATED,
    ),
    Mutant(
        "drafts after a rejection count",
        "engine/rules.py",
        "passed.long().cumprod(0).sum()",
        "passed.long().sum()",
        ENUMERATED,
    ),
    Mutant(
        "the bonus is drawn from a residual",
        "engine/rules.py",
        ".masked_fill(accepted == len(q), 0.0)",
        "",
        ENUMERATED,
    ),
    Mutant(
        "nothing is drawn where p = q",
        "engine/rules.py",
        "torch.where(mass > 0, residual, p)",
        "residual",
        RULES,
    ),
    Mutant(
        "block: the residual forgets its weight",
        "engine/rules.py",
        "residual = weight[accepted[None], None].to(p.dtype) * p_next - q_next",
        "residual = p_next - q_next",
        ENUMERATED,
    ),
    Mutant(
        "block: the first passing place ends the draft",
        "engine/rules.py",
        "accepted = pad(length * (u_accept < accept_prob), (1, 0)).amax()",
        "accepted = _until_first(u_accept < accept_prob)",
        ENUMERATED,
    ),
    Mutant(
        "block: h forgets what the draft has lost",
        "engine/rules.py",
        "whole = residual_mass + (1.0 - weight[1:])",
        "whole = residual_mass + (1.0 - weight[:-1])",
        ENUMERATED,
    ),
    Mutant(
        "lenient: the residual is the lossless one",
        "engine/rules.py",
        "_from_residual(p_next - self.lenience * q_next, p_next, u_next)",
        "_from_residual(p_next - q_next, p_next, u_next)",
        ENUMERATED,
    ),
    Mutant(
        "typical: accepted by epsilon alone",
        "engine/rules.py",
        "DELTA * torch.special.entr(p[:-1])",
        "9 * DELTA * torch.special.entr(p[:-1])",
        f"{RULES} {ENUMERATED}",
    ),
    # Trees
    Mutant(
        "a row of a tree sees its cousins",
        "engine/tree.py",
        "~pad(self.path, (1, 0), value=True)",
        "~torch.ones_like(pad(self.path, (1, 0))).tril()",
        TREES_READ,
    ),
    Mutant(
        "a row of the drafter's tree sees its cousins",
        "engine/tree.py",
        "torch.cat([hidden[parents], ~own], 1)",
        "torch.zeros(len(own), len(depths), dtype=torch.bool)",
        TREES,
    ),
    Mutant(
        "a sibling is judged by the old p",
        "engine/tree.py",
        "counts & is_draft[tokens] & (sums > 0)",
        "counts & is_draft[tokens] & (sums > 2)",
        TREES_OF_FOUR,
    ),
    Mutant(
        "what is left of p is not normalised",
        "engine/tree.py",
        "residual / sums[:, None].to(p.dtype)",
        "residual",
        TREES_OF_FOUR,
    ),
    Mutant(
        "a sibling is followed although an earlier one was accepted",
        "engine/tree.py",
        "follows = passes & is_first",
        "follows = passes",
        TREES_OF_FOUR,
    ),
    Mutant(
        "siblings are drawn with replacement",
        "engine/tree.py",
        "left = left.scatter(1, token[:, None], 0.0)",
        "left = left.clone()",
        TREES_OF_FOUR,
    ),
    Mutant(
        "after refused siblings the replacement is drawn from p",
        "engine/tree.py",
        "next=draw(left[end[None]], u_next)[0]",
        "next=draw(p[end[None]], u_next)[0]",
        TREES_OF_FOUR,
    ),
    Mutant(
        "the path's keys and values come from one row too late",
        "runtime/cache.py",
        "(start + to, start + at) for to, at in",
        "(start + to, start + at + 1) for to, at in",
        TREES_READ,
    ),
    Mutant(
        "the drafter keeps another branch",
        "drafters/model/tree.py",
        "self.lm.keep(len(ids), path)",
        "pass",
        TREES_READ,
    ),
    Mutant(
        "a token of a tree stands where the cache has it",
        "runtime/attention.py",
        "return slots[:1] - (newest - rows) + self.depths[newest - rows :]",
        "return slots",
        TREES_READ,
    ),
    Mutant(
        "compiled: a token of a tree stands where the cache has it",
        "runtime/kernels.py",
        "if newest else start + n",
        "if newest < 0 else start + n",
        TREES_READ,
    ),
    Mutant(
        "compiled: a row sees all of the tree",
        "runtime/kernels.py",
        " + floats(hidden)[i]",
        "",
        TREES_READ,
    ),
    Mutant(
        "a refused sibling is called discarded",
        "engine/emit.py",
        "refused = parents[number], verdict.judged[number] and not verdict.path[number]",
        "refused = parents[number], number == verdict.refused",
        TREES,
    ),
    Mutant(
        "compiled: a sibling is judged by the old p",
        "runtime/verdict.py",
        "left = memory.left + 4 * i * width",
        "left = left",
        COMPILED,
    ),
    Mutant(
        "a guess after the end of the text is called rejected",
        "engine/emit.py",
        "(kept[:-1] if self.stop.finish else kept)",
        "kept",
        TREES,
    ),
    Mutant(
        "a grown tree's children are drawn, with a one-hot q",
        "engine/tree.py",
        "likeliest = adjusted.topk(",
        "likeliest = (adjusted - torch.empty_like(adjusted).exponential_().log()).topk(",
        TREES,
    ),
    Mutant(
        "a grown tree keeps tokens by their own probability",
        "engine/tree.py",
        "scores.append((score[:, None] + log_probs).flatten())",
        "scores.append(log_probs.flatten())",
        TREES,
    ),
    Mutant(
        "a head goes on from what it made of another branch",
        "engine/tree.py",
        "rows.index_select(0, self.parents)",
        "rows.index_select(0, torch.zeros_like(self.parents))",
        CONTRACT,
    ),
    Mutant(
        "a path's features stay where the tree had them",
        "runtime/cache.py",
        "[] if self.features is None else [self.features.states]",
        "[]",
        CONTRACT,
    ),
    Mutant(
        "a grown tree goes on where the text has no room",
        "engine/step.py",
        "nodes.path[1:].sum(1) > value.room",
        "nodes.path[1:].sum(1) > value.room + 99",
        TREES,
    ),
    Mutant(
        "the drafter keeps the rows of a grown tree in the order of the draft",
        "engine/step.py",
        'if "fed" in self._layout else path',
        "if () else path",
        TREES_READ,
    ),
    Mutant(
        "a store's siblings come twice",
        "engine/tree.py",
        "for token in following(path, count):",
        "for token in following(path, 1) * count:",
        "tests/toy/test_drafters.py",
    ),
    Mutant(
        "of a store's tokens the rarest come first",
        "drafters/ngram/drafter.py",
        "nlargest(count, found, key=found.__getitem__)",
        "sorted(found, key=found.__getitem__)[:count]",
        "tests/toy/test_drafters.py",
    ),
    # Sampling
    Mutant(
        "no temperature",
        "engine/sampling.py",
        " / settings.temperature\n",
        "\n",
        SAMPLING,
    ),
    Mutant(
        "weights are taken for normalised",
        "engine/sampling.py",
        "u[:, None] * cumulative[:, -1:]",
        "u[:, None]",
        SAMPLING,
    ),
    Mutant(
        "a point that rounding has put too high finds the first token",
        "engine/sampling.py",
        " | (cumulative == cumulative.amax(-1, keepdim=True))",
        "",
        SAMPLING,
    ),
    Mutant(
        "the dice that draw drafts judge them, too",
        "engine/sampling.py",
        "accept=numbers[2::2]",
        "accept=numbers[1::2]",
        EXACT,
    ),
    Mutant(
        "top-p has one token too many",
        "engine/sampling.py",
        "inside = p.cumsum(-1) - p < top_p",
        "inside = p.cumsum(-1) - p <= top_p + 1e-3",
        SAMPLING,
    ),
    Mutant(
        "min-p is half of what was asked for",
        "engine/sampling.py",
        "settings.min_p.log()",
        "(settings.min_p / 2).log()",
        SAMPLING,
    ),
    # The target's step
    Mutant(
        "what follows a drafted end of the text is judged",
        "engine/step.py",
        "after_end = ends.cumsum(0) > ends",
        "after_end = ends.cumsum(0) < 0",
        LOOP,
    ),
    Mutant(
        "the target reads the text one place too late",
        "engine/step.py",
        '"position": [len(ids) - 1],',
        '"position": [len(ids)],',
        f"{LOOP} {LM} tests/models/test_capture.py",
    ),
    Mutant(
        "confidence drops the unsure place's follower only",
        "engine/step.py",
        "is_unsure(value.raw_q, value.confidence, sure).cumsum(0) == 0",
        "is_unsure(value.raw_q, value.confidence, sure).cumsum(0) <= 1",
        LENGTH,
    ),
    Mutant(
        "auto: a pause has no end",
        "engine/loop.py",
        "        self.pause -= 1\n",
        "",
        LENGTH,
    ),
    Mutant(
        "auto: the drafter is not told of a pause",
        "engine/loop.py",
        "        self.drafter.skip(ids)\n",
        "",
        CONTRACT,
    ),
    # Compiled code
    Mutant(
        "compiled: accepted by q/p",
        "runtime/verdict.py",
        "np.float64(p[token]) / np.float64(q[token])",
        "np.float64(q[token]) / np.float64(p[token])",
        COMPILED,
    ),
    Mutant(
        "compiled: the replacement is drawn from p",
        "runtime/verdict.py",
        "return accepted, ONE, ZERO if rule == TYPICAL else lenience",
        "return accepted, ONE, ZERO",
        COMPILED,
    ),
    Mutant(
        "compiled: the residual of a block forgets its weight",
        "runtime/verdict.py",
        "return accepted, np.float32(weights[accepted]), ONE",
        "return accepted, ONE, ONE",
        COMPILED,
    ),
    Mutant(
        "compiled: a penalty forgets the drafts before",
        "runtime/verdict.py",
        "seen[ints(given.drafted)[i]] += ONE",
        "seen[ints(given.drafted)[i]] += ZERO",
        COMPILED,
    ),
    Mutant(
        "compiled: what follows a drafted end of the text is judged",
        "runtime/verdict.py",
        "                return i + 1\n",
        "                return given.rows\n",
        COMPILED,
    ),
    Mutant(
        "compiled: weights are taken for normalised",
        "runtime/shaping.py",
        "u * sum_in_chunks(weights, count)",
        "u",
        COMPILED,
    ),
    Mutant(
        "compiled: top-p has one token too many",
        "runtime/shaping.py",
        "if reached >= target:",
        "if before >= target:",
        COMPILED,
    ),
    # Fates
    Mutant(
        "no token is called rejected",
        "engine/emit.py",
        'fate: Fate = "rejected" if i == accepted else "discarded"',
        'fate: Fate = "discarded"',
        LOOP,
    ),
    Mutant(
        "a replacement is called a bonus",
        "engine/emit.py",
        '"resampled" if accepted < k else "bonus" if k else "sampled"',
        '"bonus" if k else "sampled"',
        LOOP,
    ),
    Mutant(
        "the rejected token shows no u",
        "engine/emit.py",
        "was_judged = i <= verdict.accepted or",
        "was_judged = i < verdict.accepted or",
        LOOP,
    ),
    Mutant(
        "a draft is cut before its end of the text",
        "engine/emit.py",
        "next((i + 1 for i, token_id",
        "next((i for i, token_id",
        LOOP,
    ),
    # Caches and drafters
    Mutant(
        "keys and values go one place too far",
        "runtime/cache.py",
        "else start + self.key_positions[:count]",
        "else start + 1 + self.key_positions[:count]",
        LM,
    ),
    Mutant(
        "a forward sees one place too few",
        "runtime/lm.py",
        "self.all_positions[: self._next]\n        positions =",
        "self.all_positions[: max(len(ids), self._next - 1)]\n        positions =",
        LM,
    ),
    Mutant(
        "the drafter never sees its own last draft",
        "drafters/model/drafter.py",
        "last = ids[-2:] if self.exit_layer is None else ids[-1:]",
        "last = ids[-1:]",
        f"{LM} tests/models/test_capture.py",
    ),
    Mutant(
        "the drafter feeds the token before its draft",
        "drafters/model/drafter.py",
        "fed = last if drafted is None else self.in_own_ids(drafted)",
        "fed = last if drafted is None else last[-1:]",
        f"{EXACT} {LM}",
    ),
    Mutant(
        "q is that of another temperature",
        "engine/draft.py",
        "qs.append(q)",
        "qs.append(probabilities(logits))",
        EXACT,
    ),
    Mutant(
        "lookup copies from one place too late",
        "drafters/lookup/drafter.py",
        "text.append(text[following + i])",
        "text.append(text[min(following + i + 1, len(text) - 1)])",
        DRAFTERS,
    ),
    Mutant(
        "n-grams forget the longest context",
        "drafters/ngram/drafter.py",
        "range(longest, 0, -1)",
        "range(longest - 1, 0, -1)",
        DRAFTERS,
    ),
    Mutant(
        "rows of layers for MTP that saw rejected drafts count as true",
        "drafters/mtp/drafter.py",
        "self.filled = max(self.filled, len(ids) - self.used)",
        "self.filled = max(self.filled, len(ids) - 1)",
        CONTRACT,
    ),
    Mutant(
        "beyond the last layer for MTP a draft goes on from the first row",
        "drafters/mtp/drafter.py",
        "tokens[-1:], hidden[-1:], end - 1 + turn",
        "tokens[-1:], hidden[:1], end - 1 + turn",
        CONTRACT,
    ),
    Mutant(
        "an assistant also sees the key of a rejected draft",
        "drafters/assistant/drafter.py",
        "shared = assistant.keys_and_values(self.target, position)",
        "shared = assistant.keys_and_values(self.target, position + 1)",
        CONTRACT,
    ),
    Mutant(
        "place 0 holds the mask in place of the last token",
        "drafters/pard/drafter.py",
        "fed = ids[start:] + [self.mask] * (rows - 1)",
        "fed = ids[start:-1] + [self.mask] * rows",
        CONTRACT,
    ),
    Mutant(
        "masks that were accepted count as tokens of the text",
        "drafters/pard/drafter.py",
        "        self.filled = len(ids)\n",
        "        self.filled = len(ids) + rows - 1\n",
        CONTRACT,
    ),
    Mutant(
        "the head's true features are taken for one token more",
        "drafters/head_drafter.py",
        "        self.filled = len(ids) - 1\n",
        "        self.filled = len(ids)\n",
        CONTRACT,
    ),
    Mutant(
        "place 0 of a parallel head holds the mask",
        "drafters/peagle/head.py",
        "torch.cat([tokens, tokens.new_full((masks,), model.config.mask_token_id)])",
        "torch.cat([tokens[:-1], tokens.new_full((count,), model.config.mask_token_id)])",
        CONTRACT,
    ),
    Mutant(
        "the head's first draft enters at the wrong place",
        "drafters/eagle3/drafter.py",
        "row = row + len(fed)\n",
        "row = row + (len(fed) - (shown is None))\n",
        CONTRACT,
    ),
    Mutant(
        "an EAGLE head continues what is not yet normed",
        "drafters/heads.py",
        "return norm(states.to(norm.weight.dtype)).to(self.device, self.dtype)",
        "return states.to(self.device, self.dtype)",
        CONTRACT,
    ),
    Mutant(
        "an EAGLE head reads the hidden state before the embedding",
        "drafters/eagle/head.py",
        "torch.cat([embedded, g], -1)",
        "torch.cat([g, embedded], -1)",
        CONTRACT,
    ),
    Mutant(
        "another tokenizer's cache forgets what was accepted",
        "drafters/model/other_tokenizer.py",
        "self.held += [self.own_ids[token_id] for token_id in accepted]",
        "self.held += [0 for _ in accepted]",
        OTHER,
    ),
]
SLOW = [
    Mutant(
        "compiled: a penalty forgets what the draft has drawn",
        "runtime/kernels.py",
        "floats(seen)[token] += ONE",
        "floats(seen)[token] += ZERO",
        "tests/models/test_native.py",
    ),
    # Rounds that are launched ahead
    Mutant(
        "a verdict is read where the next round writes",
        "runtime/cuda.py",
        'return tensor.to("cpu", copy=True)',
        'return tensor.to("cpu")',
        AHEAD,
    ),
    Mutant(
        "a round that is launched ahead has the dice of the one before",
        "engine/loop.py",
        "uniforms(self.seed, index + 2, MOST_DRAFTED)",
        "uniforms(self.seed, index + 1, MOST_DRAFTED)",
        AHEAD,
    ),
    Mutant(
        "what the consumer does meanwhile is in a round's time",
        "engine/loop.py",
        " - away_ms",
        "",
        AHEAD,
    ),
    Mutant(
        "the last record of a text is in no round's time",
        "engine/loop.py",
        "if is_last or self.finish is not None:",
        "if is_last:",
        AHEAD,
    ),
    Mutant(
        "a round is launched after an eos",
        "engine/emit.py",
        "or not end_ids.isdisjoint(emitted)",
        "",
        AHEAD,
    ),
    Mutant(
        "an error of the round that is launched ahead comes before the last one",
        "engine/loop.py",
        "            return error\n",
        "            raise\n",
        AHEAD,
    ),
    Mutant(
        "rows that fill a captured step are judged",
        "engine/step.py",
        "is_draft = (torch.arange(len(value.drafted), device=logits.device) < value.k) & ~after_end",
        "is_draft = ~after_end",
        "tests/models/test_capture.py",
    ),
    # Experts
    Mutant(
        "rows that fill a step read experts, too",
        "engine/step.py",
        "ExpertsRead(check=read[k],",
        "ExpertsRead(check=read[-1],",
        EXPERTS,
    ),
    Mutant(
        "tokens that are fed again read experts, too",
        "runtime/experts.py",
        "[:, -rows:]",
        "[:, :rows]",
        EXPERTS,
    ),
    Mutant(
        "what was read is forgotten where p is judged again",
        "engine/step.py",
        "judging.read, output.experts_read)",
        "judging.read)",
        EXPERTS,
    ),
    Mutant(
        "a block begins with the mask",
        "drafters/dflash/head.py",
        "return torch.cat([anchor, masks], -1)",
        "return torch.cat([masks, anchor], -1)",
        CONTRACT,
    ),
    Mutant(
        "DFlash 2's selector is asked by the anchor at each place",
        "drafters/dflash2/drafter.py",
        "before = anchor if shown is None else shown.tokens",
        "before = anchor if shown is None else anchor.expand(len(shown.tokens))",
        CONTRACT,
    ),
    Mutant(
        "DFlash 2's convolution reads the row after",
        "drafters/dflash2/head.py",
        "pad(x, (0, 0, back, 0))[..., : x.shape[-2], :]",
        "pad(x, (0, 0, 0, back))[..., back:, :]",
        CONTRACT,
    ),
]


def planted(folder: Path, mutant: Mutant | None) -> Path:
    """A copy of the package and its tests, with the mutant in it."""
    for name in ("specdemo", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "pyproject.toml", "README.md", "requirements.txt", "assets"):
        (folder / name).symlink_to(ROOT / name)
    if mutant:
        file = folder / "specdemo" / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.right) == 1, f"{mutant.file} has it {text.count(mutant.right)} times"
        file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
    return folder


def status_of(folder: Path, tests: str, marker: str) -> int:
    """0: all tests have passed; 1: one has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marker, *tests.split()]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(done.stdout[-3000:], done.stderr[-1000:])
    return done.returncode


def test_without_a_mutant_all_of_these_tests_pass(tmp_path):
    tests = " ".join(sorted({test for one in (*QUICK, *SLOW) for test in one.tests.split()}))
    assert status_of(planted(tmp_path, None), tests, "not slow and not long") == 0


@pytest.mark.parametrize("mutant", QUICK, ids=lambda one: one.name)
def test_the_quick_set_finds(tmp_path, mutant):
    assert status_of(planted(tmp_path, mutant), mutant.tests, "not slow and not long") == 1


@pytest.mark.parametrize("mutant", SLOW, ids=lambda one: one.name)
def test_the_whole_line_finds(tmp_path, mutant):
    assert status_of(planted(tmp_path, mutant), mutant.tests, "not long") == 1
