"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdemo.engine.drafters import Draft, certain
from specdemo.engine.sampling import Sampler, probabilities
from specdemo.runtime.device import sent
from specdemo.runtime.graphs import Eager, Graphs
from specdemo.runtime.lm import LM


class ModelDrafter:
    """Drafts token by token with its own cache. A vocabulary wider than the target's is cut, a narrower one padded with
    q = 0. Beyond the drafter's own context nothing is drafted."""

    fill = 0

    def __init__(
        self, lm: LM, context: float, sampler: Sampler, vocab_size: int, device: torch.device, run: Eager | Graphs, gamma: int
    ):  # fmt: skip
        self.lm = lm
        self.context = context
        self.sampler = sampler
        self.vocab_size = vocab_size  # the target's
        self.device = device  # the target's
        self.run = run
        self.gamma = gamma

    def start(self, ids: list[int]) -> None:
        if len(ids) <= self.context:
            self.lm.prefill(torch.tensor(ids[:-2], dtype=torch.long))

    def propose(self, ids: list[int], k: int, draws: Tensor) -> Draft:
        k = int(min(k, self.context - len(ids) + 1))
        if k <= 0:
            return certain([], self.vocab_size, self.device)
        rows = self.run.rows(k, self.gamma)
        # Behind a fully accepted round the cache lacks the last draft, which was never fed: feeding the last two tokens
        # every round keeps the shapes the same whatever was accepted.
        last = ids[-2:]
        start = len(ids) - len(last)
        fed = sent([start, *last], torch.long, self.lm.device)
        draws = draws[:rows].to(self.lm.device)
        while True:
            self.lm.reach(start, len(ids) + rows)
            key = ("drafting", rows, len(last), self.lm.span, self.lm.moves, self.sampler.key)
            draft = self.run(key, self.draft, fed, draws)
            # Had the sampler looked at too few tokens? On a CPU that costs nothing to see; on a GPU the draft will be cut there.
            if (
                self.lm.device.type != "cpu"
                or True not in draft[1][:, 0].isnan().tolist()
                or not self.sampler.widen()
            ):
                return Draft(k, *(part.to(self.device) for part in draft))

    def draft(self, fed: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """fed: the position of the last tokens, and they; draws [B] -> B tokens [B], their q [B, V] and raw q [B, V]."""
        start, fed = fed[0], fed[1:]
        tokens, qs, said = [], [], []
        for u in draws.split(1):
            logits = self.lm.forward(fed, start)[-1:]  # [1, of the drafter's width]
            if (narrower := self.vocab_size - self.lm.vocab_size) != 0:
                logits = pad(logits, (0, narrower), value=-torch.inf)  # by less than nothing: cut
            start = start + len(fed)
            fed, q = self.sampler.take(logits, u)  # [1], [1, V]
            tokens.append(fed)
            qs.append(q)
            said.append(logits)
        return torch.cat(tokens), torch.cat(qs), probabilities(torch.cat(said))

    def learn(self, ids, draft, likely):
        pass
