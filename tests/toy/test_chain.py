"""The first of two drafters that has a draft gives it: the text has the target's distribution, and the second
one's cache lacks nothing of the text after rounds that the first has drafted."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.drafters.model import ModelDrafter
from specdemo.drafters.text import JoinedDrafter, LookupDrafter
from specdemo.engine.sampling import Sampler
from tests.oracle import materials
from tests.tiny import tiny
from tests.toy.test_exact_table import PLAIN, RUNS, SOUND, V, exactness, model_drafter

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


class Told(ModelDrafter):
    def skip(self, ids):
        self.skipped = [*vars(self).get("skipped", []), len(ids)]
        super().skip(ids)


def chain(sampler):
    return JoinedDrafter(LookupDrafter(materials(sampler, V, ngram=1)), model_drafter(sampler, Told))


def test_the_first_that_has_a_draft_gives_it_and_the_other_is_told():
    drafter = chain(Sampler(PLAIN))
    drafter.start([0, 1, 2, 0])
    copied = drafter.propose([0, 1, 2, 0], 2, [0.5, 0.5])
    assert copied.ids.tolist() == [1, 2] and drafter.second.skipped == [4]
    written = drafter.propose([0, 1, 2, 0, 3], 2, [0.5, 0.5])
    assert written.k == 2 and written.q.max() < 1 and drafter.second.skipped == [4]


def test_the_text_has_the_targets_distribution():
    fates = Counter()
    assert exactness(replace(PLAIN, gamma=3), RUNS, fates, drafter=chain) > SOUND
    assert min(fates["accepted"], fates["resampled"]) > RUNS / 20


def test_what_the_drafter_says_is_what_it_says_of_the_whole_text():
    """In rounds after any number of rounds that were copies, also where drafts were rejected before."""
    target, drafter = tiny(vocab_size=12, seed=2), tiny(vocab_size=12, seed=3)
    pair = load_pair(target=target, drafter=drafter)
    how = dict(draft_with="lookup+model", ngram=2, temperature=1.5, top_p=1.0)
    params = Params(**how, gamma=3, seed=1, max_new_tokens=120)
    trace = generate(pair, PROMPT, params, measure=False)
    text, before, after = list(PROMPT), "none", Counter()  # which drafted after which
    for this_round in trace.rounds:
        drafted = [token.id for token in this_round.draft]
        by = "lookup" if drafted and this_round.draft[0].q == 1.0 else "model"
        if by == "model":
            with torch.no_grad():
                logits = drafter(torch.tensor([text + drafted])).logits[0]
            q = (logits[len(text) - 1 : -1] / 1.5).softmax(-1)
            for row, token in zip(q, this_round.draft, strict=False):
                assert token.q == pytest.approx(row[token.id].item(), abs=1e-5)
        after[before, by] += 1
        before = by
        text += this_round.emitted
    assert {("lookup", "model"), ("model", "lookup"), ("lookup", "lookup")} <= after.keys()


@pytest.mark.parametrize("name", ["suffix+early-exit", "ngram+model"])
def test_any_two_can_be_joined_if_the_first_copies(name):
    """Greedily the text is the target's own, and the n-gram store goes on to learn."""
    target = tiny(vocab_size=12, seed=2)
    pair = load_pair(target=target, drafter=tiny(vocab_size=12, seed=3))
    how = Params(temperature=0, max_new_tokens=40, ngram=2)
    trace = generate(pair, PROMPT, replace(how, draft_with=name), measure=False)
    alone = generate(pair, PROMPT, replace(how, draft_with="none"), measure=False)
    assert trace.output_ids == alone.output_ids and trace.stats.accepted
    with pytest.raises(ValueError, match="^draft_with "):
        Params(draft_with="+".join(reversed(name.split("+"))))
