"""The page's figure computes with formulas of its own (specdemo/ui/static/lesson): here they are held against
the engine's sampler and its speculative rule, on random p, q, temperatures and random numbers."""

import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest
import torch

from specdemo.engine.rules import speculative
from specdemo.engine.sampling import Sampler, Settings
from specdemo.events import Params
from specdemo.events.trace import Trace, round_objects
from specdemo.ui.view.feed import setting

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")
HERE = Path(__file__).parent
TRACES = HERE.parents[1] / "assets" / "traces"
WITHIN = 1e-6
TOKENS = 6


def cases(count: int) -> list[dict]:
    """Random p and q before the sampler, a draft that can come, and two random numbers."""
    random = Random(28)
    made = []
    while len(made) < count:
        temperature = random.choice([0.0, 0.3, 0.7, 1.0, 1.6])
        raw_p, raw_q = (weights(random) for _ in range(2))
        draft = int(torch.multinomial(shaped(raw_q, temperature), 1, generator=torch.manual_seed(len(made))))
        u, other = random.random(), random.random()
        made.append(
            {
                "raw_p": raw_p,
                "raw_q": raw_q,
                "temperature": temperature,
                "draft": draft,
                "u": u,
                "other": other,
            }
        )
    return made


def weights(random: Random) -> list[float]:
    drawn = [random.random() ** 3 + 1e-3 for _ in range(TOKENS)]
    return [one / sum(drawn) for one in drawn]


def shaped(raw: list[float], temperature: float) -> torch.Tensor:
    """[V], by the engine's sampler."""
    sampler = Sampler(Params(temperature=temperature, top_p=1.0))
    settings = Settings.on_host(sampler)
    return sampler.shape(torch.tensor([raw], dtype=torch.float64).log(), settings)[0]


def by_the_page(**asked: list[dict]) -> dict[str, list]:
    command, given = ["node", HERE / "lesson.mjs"], json.dumps(asked)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def both() -> list[tuple[dict, dict]]:
    asked = cases(150)
    return list(zip(asked, by_the_page(cases=asked)["answers"], strict=True))


def near(found: list[float], expected: torch.Tensor) -> bool:
    return bool(torch.allclose(torch.tensor(found).double(), expected.double(), rtol=0, atol=WITHIN))


def judged(p: torch.Tensor, q: torch.Tensor, draft: int, u: float, other: float):
    """The engine's verdict on one draft. p and q [V]; the place after the draft is never reached here."""
    u_accept, u_next = (torch.tensor([one], dtype=torch.float64) for one in (u, other))
    return speculative(p.expand(2, -1), q[None], torch.tensor([draft]), u_accept, u_next)


def test_the_sampler_the_verdicts_and_the_replacements_are_the_engines(both):
    rejected = 0
    for asked, found in both:
        p, q = (shaped(asked[raw], asked["temperature"]) for raw in ("raw_p", "raw_q"))
        assert near(found["p"], p) and near(found["drawn"], q), asked
        decision = judged(p, q, asked["draft"], asked["u"], asked["other"])
        assert found["accept"][asked["draft"]] == pytest.approx(float(decision.accept_prob[0]), abs=WITHIN)
        assert found["isAccepted"] == bool(decision.accepted), asked
        if not found["isAccepted"]:
            rejected += 1
            assert found["next"] == int(decision.next), asked
            assert 1 - found["rate"] == pytest.approx(float(decision.residual_mass), abs=WITHIN)
    assert 25 < rejected < 140


def test_what_comes_out_is_the_engines_accepted_drafts_and_replacements(both):
    """Each possible draft once. u = 1, which is never drawn, rejects all of them."""
    for asked, found in both[:50]:
        p, q = (shaped(asked[raw], asked["temperature"]) for raw in ("raw_p", "raw_q"))
        probs = [judged(p, q, draft, 1.0, 0.5).accept_prob[0] for draft in range(TOKENS)]
        accepted = torch.stack(probs).nan_to_num() * q.double()
        assert near(found["accepted"], accepted) and near(found["replaced"], (p - q).clamp(min=0.0)), asked
        assert found["rate"] == pytest.approx(float(accepted.sum()), abs=WITHIN)
        assert near(found["out"], p) and found["distance"] == pytest.approx(0, abs=1e-9)


def test_each_rejection_of_the_recorded_runs_has_the_residual_that_the_engine_recorded():
    """Most of the vocabulary is not listed in a trace, and the figure has all of that as two tokens."""
    traces = [Trace.load(file) for file in sorted(TRACES.glob("*.json"))]
    asked = [{"rounds": round_objects(one.rounds), "setting": setting(one)} for one in traces]
    runs = by_the_page(runs=asked)["places"]
    assert all(place["off"] < 1e-5 for run in runs for place in run), "the run's own, to six digits"
    sampled = [run for one, run in zip(traces, runs, strict=True) if one.params.temperature > 0]
    places = [place for run in sampled for place in run]
    rejected = [place for place in places if place["fate"] == "rejected"]
    assert len(sampled) > 3 and len(rejected) > 80
    for place in rejected:
        assert 1 - place["rate"] == pytest.approx(place["mass"], abs=1e-5), place
        if place["isReplaced"]:
            assert place["ofNext"] == place["p"], "the replacement brings the same"
            assert place["isDrawn"], "the figure draws what the run drew"
    assert any(place["others"] == ["above", "below"] for place in rejected)
    assert all(place["others"] in ([], ["all"]) for place in places if place["fate"] == "accepted")
