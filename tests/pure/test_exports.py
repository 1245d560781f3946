"""What the page keeps of a run, read by other programs' readers: the CSV by Python's, the SVG as XML."""

import csv
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
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
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
IN_TEXT = ("accepted", "resampled", "bonus", "sampled")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")


def hostile_rounds() -> list[dict]:
    rounds = json.loads(json.dumps(RECORDED["rounds"]))
    tokens = [token for one in rounds for token in (*one["draft"], one["next"]) if token]
    for at, token in enumerate(tokens):
        token["text"] = HOSTILE[at % len(HOSTILE)]
    return rounds


def kept(rounds: list[dict], said: str = "") -> dict[str, str]:
    command = ["node", str(ROOT / "tests" / "js" / "exports.js")]
    given = json.dumps({"rounds": rounds, "said": said})
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def fate_of(token: dict) -> str:
    return token.get("fate") or token["source"]


@pytest.mark.parametrize("rounds", [RECORDED["rounds"], hostile_rounds()], ids=["recorded", "hostile"])
def test_the_rounds_as_csv(rounds):
    written = kept(rounds)["csv"]
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


@pytest.mark.parametrize("rounds", [RECORDED["rounds"], hostile_rounds()], ids=["recorded", "hostile"])
def test_the_text_as_svg(rounds):
    said = "".join(HOSTILE)
    root = ET.fromstring(kept(rounds, said)["svg"])
    elements = list(root.iter())
    assert {one.tag.rpartition("}")[2] for one in elements} == {"svg", "rect", "path", "text"}
    names = {name for one in elements for name in one.attrib}
    assert not [name for name in names if name.startswith("on") or "href" in name]
    drawn = [(one.get("data-fate"), one.text or "") for one in elements if one.get("data-fate")]
    tokens = [token for one in rounds for token in (*one["draft"], one["next"]) if token]
    for fates in (IN_TEXT, ("rejected",), ("discarded",)):
        text = "".join(token["text"] for token in tokens if fate_of(token) in fates)
        assert "".join(text for fate, text in drawn if fate in fates) == NOT_XML.sub("\ufffd", text)
    if rounds is RECORDED["rounds"]:
        assert "".join(text for fate, text in drawn if fate in IN_TEXT) == RECORDED["text"]
    others = "".join(
        one.text or "" for one in elements if one.tag.endswith("}text") and not one.get("data-fate")
    )
    words = NOT_XML.sub("\ufffd", said).replace("\n", "⏎")
    assert others.replace("\n", "").replace("⏎", "").count(words.replace("⏎", "")) >= 3
