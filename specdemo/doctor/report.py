"""The doctor's report: a line for each check, the tables, and all of it as JSON, in one fenced block that can
be pasted into an issue."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date

from specdemo.doctor.trials import Check, Table

SCHEMA = "specdemo.doctor/1"


def line(check: Check) -> str:
    return f"{check.outcome:<8} {check.section}: {check.name}: {check.detail}"


def report(checks: Sequence[Check]) -> str:
    tables = [table for check in checks for table in check.tables]
    parts = ["\n".join(map(line, checks)), *map(as_text, tables), json.dumps(as_json(checks))]
    # A backtick could end the block. In JSON it can only be inside a string.
    parts = [part.replace("`", "'") for part in parts[:-1]] + [parts[-1].replace("`", "\\u0060")]
    return "```\n" + "\n\n".join(parts) + "\n```"


def as_json(checks: Sequence[Check]) -> dict[str, object]:
    """What was found. The groups of facts have keys of their own."""
    told = ("section", "name", "outcome", "detail", "output")
    facts: dict[str, dict[str, object]] = {"versions": {}, "hardware": {}, "measured": {}}
    for check in checks:
        for group, values in check.facts.items():
            facts[group] |= values
    return {
        "schema": SCHEMA,
        "date": date.today().isoformat(),
        "checks": [{name: getattr(check, name) for name in told} for check in checks],
        **facts,
        "tables": [asdict(table) for check in checks for table in check.tables],
    }


def as_text(table: Table) -> str:
    """Numbers are aligned on the right."""
    cells = [table.columns, *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [table.name]
    for row in cells:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def exit_status(checks: Sequence[Check]) -> int:
    return 1 if any(check.outcome == "FAIL" for check in checks) else 0
