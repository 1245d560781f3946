"""The house stays a house: imports run downward, and each floor knows only what it may."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLOORS = [  # a module imports from floors above its own line only
    {"events", "pairs", "attention", "machine"},
    {"metrics", "sampling", "lm", "text", "few_rows"},
    {"rules", "trace", "drafters", "fitness"},
    {"record"},
    {"pair"},
    {"drafters.model", "drafters.lookup", "drafters.ngram"},
    {"engine", "explain", "request"},
    {"loading"},
    {"session", "residents"},
    {"ui.models"},
    {"terminal", "bench", "ui.view", "ui.settings", "ui.runs"},
    {"cli", "ui.frame", "ui.controls", "training"},
    {"ui.page"},
    {"__main__", "__init__"},
]


def modules() -> dict[str, Path]:
    files = (ROOT / "specdemo").rglob("*.py")
    return {".".join(file.relative_to(ROOT / "specdemo").with_suffix("").parts).replace(".__init__", ""): file for file in files}


def floor(name: str) -> int:
    name = name if any(name in floor for floor in FLOORS) else name.split(".")[0]
    return next(i for i, floor in enumerate(FLOORS) if name in floor)


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_run_downward():
    own = modules()
    for name, file in own.items():
        for module in imported(file):
            other = module.removeprefix("specdemo.")
            if (
                module.startswith("specdemo.")
                and other in own
                and name != "ui"
                and not (name.split(".")[0] == other.split(".")[0] in ("training", "bench"))
            ):
                assert floor(other) < floor(name), f"{name} imports {other}"


def test_what_reads_a_trace_needs_no_torch():
    for module in ("events", "metrics", "trace", "terminal", "ui.view", "ui.settings", "ui.frame"):
        # specdemo/__init__ offers the whole engine; a bare package in its place shows what the module itself needs.
        code = f"""
import sys, types
package = types.ModuleType("specdemo"); package.__path__ = [{str(ROOT / "specdemo")!r}]
sys.modules["specdemo"] = package
import specdemo.{module}
assert "torch" not in sys.modules and "gradio" not in sys.modules
"""
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_gradio_and_the_loaders_live_in_one_place_each():
    for name, file in modules().items():
        names = {module.split(".")[0] for module in imported(file)}
        assert ("gradio" in names) == (name in ("ui.page", "ui.controls")), name
        loads = any(module in ("transformers.AutoModelForCausalLM", "transformers.QuantoConfig") for module in imported(file))
        assert not loads or name == "loading" or name.startswith("training"), name
