"""The rounds as the page saves them, read by Python's own reader of CSV."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDED = json.loads((ROOT / "assets" / "traces" / "first.json").read_text(encoding="utf-8"))
HOSTILE = (
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", 'a,"b"\r\nc', "'", "", " ", "\n", "\u2028"),
    *("</text><script>hit()</script>", '"/><a href="x">', "&amp;&#0;", "]]>", "<!--", "\0\x1b", "\ud800"),
    *("\ufffe", "ab\u202ecd", "🟢", "x" * 300, "<?xml?>", "%s${x}{{x}}"),
)
NUMBERS = ("p", "q", "u", "accept_prob", "raw_p", "raw_q")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")


def hostile_rounds() -> list[dict]:
    rounds = json.loads(json.dumps(RECORDED["rounds"]))
    tokens = [token for one in rounds for token in (*one["draft"], one["next"]) if token]
    for at, token in enumerate(tokens):
        token["text"] = HOSTILE[at % len(HOSTILE)]
    return rounds


def kept(rounds: list[dict]) -> str:
    command = ["node", str(ROOT / "tests" / "js" / "exports.js")]
    given = json.dumps({"rounds": rounds}).encode()
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


def fate_of(token: dict) -> str:
    return token.get("fate") or token["source"]


@pytest.mark.parametrize("rounds", [RECORDED["rounds"], hostile_rounds()], ids=["recorded", "hostile"])
def test_the_rounds_as_csv(rounds):
    written = kept(rounds)
    rows = list(csv.DictReader(io.StringIO(written, newline=""), strict=True))
    tokens = [
        (one, place, token)
        for one in rounds
        for place, token in enumerate(filter(None, (*one["draft"], one["next"])))
    ]
    assert len(rows) == len(tokens) and written.endswith("\r\n")
    for row, (one, place, token) in zip(rows, tokens, strict=True):
        where = (one["index"] + 1, place + 1, token["id"])
        assert (row["round"], row["place"], row["id"]) == tuple(map(str, where))
        assert row["fate"] == fate_of(token) and json.loads(row["text"]) == token["text"]
        for name in NUMBERS:
            assert (float(row[name]) if row[name] else None) == token.get(name), name
        assert (float(row["draft_ms"]), float(row["verify_ms"])) == (one["draft_ms"], one["verify_ms"])
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row.values())
