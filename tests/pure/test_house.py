"""The architecture, held against the code: imports run downward, and each folder knows only what it may."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specdemo"
FLOORS = [  # a module imports from its own folder and from floors above its own line
    {"events", "errors", ""},  # "" is the package's face, which has the version
    {"runtime", "vllm"},
    {"engine", "loading"},
    {"session"},
    {"zero"},
    {"bench"},
    {"ui", "doctor"},
    {"cli", "training"},
    {"__main__"},
]
TORCH_FREE = (
    *(
        "specdemo",
        "specdemo.events",
        "specdemo.events.metrics",
        "specdemo.events.trace",
        "specdemo.cli.terminal",
    ),
    *(
        "specdemo.cli.options",
        "specdemo.cli.main",
        "specdemo.loading.catalog",
        "specdemo.errors",
        "specdemo.loading.errors",
    ),
    *("specdemo.ui.feed", "specdemo.ui.texts", "specdemo.ui.frame", "specdemo.ui.wire"),
    *("specdemo.ui.settings", "specdemo.ui.hints", "specdemo.ui.shelf", "specdemo.ui.opening"),
    *("specdemo.ui.limits", "specdemo.ui.line"),
    *("specdemo.bench.report", "specdemo.bench.methods", "specdemo.bench.picture"),
    *("specdemo.doctor.run", "specdemo.doctor.report"),
)


def modules() -> dict[str, Path]:
    """Dotted name within the package -> file."""
    named = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = file
    return named


def imported(file: Path) -> set[str]:
    """Modules that a file imports, within functions too; `if TYPE_CHECKING` is left out."""
    found = set()
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        todo += ast.iter_child_nodes(node)
    return found


def own_imports(file: Path) -> set[str]:
    own = {
        name.removeprefix("specdemo").removeprefix(".")
        for name in imported(file)
        if name.split(".")[0] == "specdemo"
    }
    return own & modules().keys()


def floor(module: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if module.split(".")[0] in floor)


def test_imports_run_downward():
    for name, file in modules().items():
        for other in own_imports(file):
            same_folder = name.split(".")[0] == other.split(".")[0]
            assert same_folder or floor(other) < floor(name), f"{name} imports {other}"


def test_no_module_imports_itself_through_others():
    """Within a folder, too, there is no circle."""
    graph = {name: own_imports(file) - {name} for name, file in modules().items()}
    below: dict[str, set[str]] = {}

    def reach(name: str, path: tuple[str, ...]) -> set[str]:
        assert name not in path, f"a circle: {' -> '.join((*path, name))}"
        if name not in below:
            below[name] = set().union(*({other} | reach(other, (*path, name)) for other in graph[name]))
        return below[name]

    for name in graph:
        reach(name, ())


@pytest.mark.parametrize("module", TORCH_FREE)
def test_it_can_be_imported_without_torch(module):
    """The real package, in a process in which importing torch, transformers or gradio raises."""
    code = f"""
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "gradio"))
import {module}
from specdemo import Params, Round, Trace
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_gradio_and_the_loaders_live_in_one_place_each():
    loaders = {"transformers.AutoModelForCausalLM", "transformers.QuantoConfig"}
    for name, file in modules().items():
        names = imported(file)
        assert ("gradio" in {module.split(".")[0] for module in names}) == (
            name in ("ui.page", "ui.api", "ui.handlers", "ui.controls", "ui.serve")
        ), name
        assert not loaders & names or name == "loading.load" or name.startswith("training"), name
