"""What the instruments' scripts repeat of the server's: the longest draft."""

import re
from pathlib import Path

from specdemo.events.params import LIMITS

STATIC = Path(__file__).resolve().parents[2] / "specdemo" / "ui" / "static"


def test_the_chart_ends_with_the_longest_draft():
    script = (STATIC / "view" / "chart.js").read_text(encoding="utf-8")
    assert int(re.search(r"LONGEST = (\d+)", script)[1]) == LIMITS["gamma"][2]
