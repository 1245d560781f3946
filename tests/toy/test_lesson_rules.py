"""The page's figure computes with formulas of its own (specdemo/ui/static/lesson): here they are held against
the engine's sampler and its speculative rule, on random p, q, filters and random numbers."""

import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest
import torch

from specdemo.engine.rules import speculative
from specdemo.engine.sampling import Sampler, Settings
from specdemo.events import Judged, Params, Round, metrics

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")
SCRIPT = Path(__file__).with_name("lesson.mjs")
WITHIN = 1e-6
TOKENS = 6


def cases(count: int) -> list[dict]:
    """Random p and q before the sampler, random filters, a draft that can come, and two random numbers."""
    random = Random(28)
    made = []
    while len(made) < count:
        shaping = {
            "temperature": random.choice([0.0, 0.3, 0.7, 1.0, 1.6]),
            "top_k": random.choice([0, 0, 1, 3, 5, TOKENS]),
            "top_p": random.choice([1.0, 1.0, 0.35, 0.8, 0.95]),
            "min_p": random.choice([0.0, 0.0, 0.05, 0.3]),
        }
        raw_p, raw_q = (weights(random) for _ in range(2))
        draft = int(torch.multinomial(shaped(raw_q, shaping), 1, generator=torch.manual_seed(len(made))))
        u, other = random.random(), random.random()
        made.append(
            {"raw_p": raw_p, "raw_q": raw_q, "shaping": shaping, "draft": draft, "u": u, "other": other}
        )
    return made


def weights(random: Random) -> list[float]:
    drawn = [random.random() ** 3 + 1e-3 for _ in range(TOKENS)]
    return [one / sum(drawn) for one in drawn]


def shaped(raw: list[float], shaping: dict) -> torch.Tensor:
    """[V], by the engine's sampler."""
    sampler = Sampler(Params(**shaping))
    settings = Settings(torch.tensor(sampler.numbers, dtype=torch.float64))
    probs, exact = sampler.shape(torch.tensor([raw], dtype=torch.float64).log(), settings)
    assert exact.all()
    return probs[0]


def by_the_page(asked: list[dict]) -> list[dict]:
    done = subprocess.run(
        ["node", SCRIPT], input=json.dumps(asked), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def both() -> list[tuple[dict, dict]]:
    asked = cases(300)
    return list(zip(asked, by_the_page(asked), strict=True))


def near(found: list[float], expected: torch.Tensor) -> bool:
    return bool(torch.allclose(torch.tensor(found).double(), expected.double(), rtol=0, atol=WITHIN))


def judged(p: torch.Tensor, q: torch.Tensor, draft: int, u: float, other: float):
    """The engine's verdict on one draft. p and q [V]; the place after the draft is never reached here."""
    u_accept, u_next = (torch.tensor([one], dtype=torch.float64) for one in (u, other))
    return speculative(p.expand(2, -1), q[None], torch.tensor([draft]), u_accept, u_next)


def test_the_sampler_is_the_engines(both):
    for asked, found in both:
        assert near(found["p"], shaped(asked["raw_p"], asked["shaping"])), asked
        assert near(found["drawn"], shaped(asked["raw_q"], asked["shaping"])), asked


def test_verdicts_and_replacements_are_the_engines(both):
    rejected = 0
    for asked, found in both:
        p, q = (shaped(asked[raw], asked["shaping"]) for raw in ("raw_p", "raw_q"))
        decision = judged(p, q, asked["draft"], asked["u"], asked["other"])
        assert found["accept"][asked["draft"]] == pytest.approx(float(decision.accept_prob[0]), abs=WITHIN)
        assert found["isAccepted"] == bool(decision.accepted), asked
        if not found["isAccepted"]:
            rejected += 1
            assert found["next"] == int(decision.next), asked
            assert 1 - found["rate"] == pytest.approx(float(decision.residual_mass), abs=WITHIN)
    assert 50 < rejected < 250


def test_what_comes_out_is_the_engines_accepted_drafts_and_replacements(both):
    """Each possible draft once, with a u that accepts it if anything does and one that rejects it."""
    for asked, found in both[:100]:
        p, q = (shaped(asked[raw], asked["shaping"]) for raw in ("raw_p", "raw_q"))
        accepted = torch.zeros(TOKENS, dtype=torch.float64)
        for draft in range(TOKENS):
            if q[draft] > 0:
                decision = judged(p, q, draft, 1.0, 0.5)  # u = 1 is never drawn: it rejects every draft
                accepted[draft] = q[draft].double() * decision.accept_prob[0]
        residual = (p - q).clamp(min=0.0)
        mass = float(decision.residual_mass)
        assert near(found["accepted"], accepted) and near(found["replaced"], residual), asked
        assert found["rate"] == pytest.approx(float(accepted.sum()), abs=WITHIN)
        assert 1 - found["rate"] == pytest.approx(mass, abs=WITHIN)
        assert near(found["out"], p) and found["distance"] == pytest.approx(0, abs=1e-9)


def test_the_acceptance_rate_is_the_one_that_metrics_counts(both):
    """Over a grid of random numbers: each draft as often as q has it, each u as often as any other."""
    steps = 400
    for asked, found in both[:5]:
        stats = metrics.fresh()
        for at in range(steps):
            draft = int(torch.tensor(found["drawn"]).cumsum(0).gt((at + 0.5) / steps).int().argmax())
            for step in range(20):
                fate = "accepted" if (step + 0.5) / 20 < found["accept"][draft] else "rejected"
                stats = metrics.after_round(stats, a_round(draft, fate))
        assert stats.acceptance_rate == pytest.approx(found["rate"], abs=0.03), asked


def a_round(draft: int, fate: str) -> Round:
    token = Judged(
        id=draft, text="", p=None, q=None, raw_p=None, raw_q=None, u=0.5, accept_prob=None, fate=fate, top=()
    )
    return Round(index=0, draft=(token,), next=None, emitted=(), draft_ms=0.0, verify_ms=0.0)
