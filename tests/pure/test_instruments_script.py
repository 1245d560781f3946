"""What the instruments' scripts repeat of the server's: the comparison's columns, the longest draft."""

import re
from pathlib import Path

from specdemo.bench.methods import COLUMNS
from specdemo.events.params import LIMITS

STATIC = Path(__file__).resolve().parents[2] / "specdemo" / "ui" / "static"
NOT_ON_THE_PAGE = {"gamma", "acceptance"}  # MethodRow of ui/wire.py does not have them


def test_the_comparison_has_the_columns_of_the_command_line():
    block = re.search(r"COLUMNS = {(.*?)\n};", (STATIC / "rows.js").read_text(encoding="utf-8"), re.S)[1]
    assert re.findall(r'^  "(.+?)": ', block, re.M) == [
        name for name in COLUMNS if name not in NOT_ON_THE_PAGE
    ]


def test_the_chart_ends_with_the_longest_draft():
    script = (STATIC / "chart.js").read_text(encoding="utf-8")
    assert int(re.search(r"LONGEST = (\d+)", script)[1]) == LIMITS["gamma"][2]
