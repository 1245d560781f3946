"""How long a round's draft may be: `gamma`, or chosen round by round from how the run has gone so far."""

from collections.abc import Sequence

from specdemo.events import Gamma, Judged
from specdemo.events.theory import expected_speedup
from specdemo.runtime.graphs import AUTO_ROWS

EXPECTED, WEIGHT = 0.7, 4.0  # before the first verdict: this acceptance rate, as if seen in so many verdicts
HALF_LIFE = 32  # verdicts, after which one counts half
# What a drafted token costs besides its drafting: a row in the target's forward, in parts of a plain forward.
# It was 0.04 to 0.08 for the embedded target on a CPU, and was not measured on a GPU.
ROW_COST = 0.05


class DraftLength:
    """`gamma` is the most tokens that the next round may draft.

    "auto" takes the length of AUTO_ROWS with the largest speed-up by Leviathan et al. 2023, theorem 3.8, for
    the acceptance rate of the run's latest verdicts and a given cost. It depends on the rounds before, so
    that the output keeps the target's distribution, and on no clock, so that the same seed gives the same
    rounds again."""

    def __init__(self, gamma: Gamma, cost: float = 0.0):
        """cost: of drafting a token, in parts of the target's forward."""
        self.is_auto = gamma == "auto"
        self.cost = cost + ROW_COST
        self.accepted, self.judged = EXPECTED * WEIGHT, WEIGHT
        self.gamma = self._best() if gamma == "auto" else gamma

    def learn(self, draft: Sequence[Judged]) -> None:
        """Is given each round's draft."""
        for token in draft:
            if self.is_auto and token.fate != "discarded":
                kept = 0.5 ** (1 / HALF_LIFE)
                self.accepted = kept * self.accepted + (token.fate == "accepted")
                self.judged = kept * self.judged + 1
        if self.is_auto:
            self.gamma = self._best()

    def _best(self) -> int:
        alpha = self.accepted / self.judged
        return max(AUTO_ROWS, key=lambda gamma: expected_speedup(alpha, gamma, self.cost))
