"""What the theory of speculative decoding expects (Leviathan et al. 2023)."""


def expected_tokens(alpha: float, gamma: float) -> float:
    """Tokens per round at an acceptance rate `alpha`: (1 - alpha^(gamma+1)) / (1 - alpha), equation 1. It
    assumes that drafts are accepted independently of each other."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """How much faster than one token per target forward, theorem 3.8. A drafter step costs `cost_ratio` of a
    target step; a verifying forward is assumed to cost no more than a one-token forward."""
    return expected_tokens(alpha, gamma) / (gamma * cost_ratio + 1)


def break_even(gamma: float, tokens: float) -> float | None:
    """The acceptance rate from which rounds of gamma drafts yield that many tokens on average, by equation 1;
    None if they cannot."""
    if tokens > gamma + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < tokens else (low, middle)
    return high
