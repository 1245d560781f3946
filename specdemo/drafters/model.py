"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.drafters import Draft, certain
from specdemo.lm import LM
from specdemo.sampling import Sampler, draw, probabilities


class ModelDrafter:
    """Drafts token by token with its own cache. A vocabulary wider than the target's is cut, a narrower one padded with
    q = 0. Beyond the drafter's own context nothing is drafted."""

    fill = 0

    def __init__(self, lm: LM, context: float, sampler: Sampler, vocab_size: int, device: torch.device):
        self.lm = lm
        self.context = context
        self.sampler = sampler
        self.vocab_size = vocab_size  # the target's
        self.device = device  # the target's

    def start(self, ids: list[int]) -> None:
        if len(ids) <= self.context:
            self.lm.prefill(torch.tensor(ids[:-2], dtype=torch.long))

    def propose(self, ids: list[int], k: int, draws: Tensor) -> Draft:
        k = min(k, self.context - len(ids) + 1)
        if k <= 0:
            return certain([], self.vocab_size, self.device)
        # Behind a fully accepted round the cache lacks the last draft, which was never fed: feeding the last two tokens
        # every round keeps the shapes the same whatever was accepted.
        self.lm.rewind(max(len(ids) - 2, 0))
        fed = torch.tensor(ids[self.lm.length :], dtype=torch.long)
        tokens, qs, raws = [], [], []
        for i in range(k):
            logits = self.lm.forward(fed)[-1:, : self.vocab_size].to(self.device)  # [1, V or less]
            logits = pad(logits, (0, self.vocab_size - logits.shape[1]), value=-torch.inf)
            q = self.sampler(logits)  # [1, V]
            fed = draw(q, draws[i : i + 1])  # [1]
            tokens.append(fed)
            qs.append(q)
            raws.append(probabilities(logits))
        return Draft(torch.cat(tokens), torch.cat(qs), torch.cat(raws))

    def learn(self, ids, draft, likely):
        pass
