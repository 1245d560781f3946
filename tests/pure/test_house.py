"""The architecture, held against the code: imports run downward, and each folder knows only what it may."""

import ast
import gc
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from tests.toy.test_mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specdemo"
FLOORS = [  # a module imports from its own folder and from floors above its own line
    {"words"},
    {"events", "errors"},
    {"runtime", "servers"},
    {"engine"},
    {"drafters"},
    {"loading"},
    {"session"},
    {"zero"},
    {"measure", "trials"},
    {"ui", "doctor"},
    {"cli"},
    {"__main__", ""},  # "" is the package itself, which loads the public names when they are asked for
]
ROOMS_OF_UI = {  # and what each may import from
    "page": {"front", "runs", "view"},
    "front": {"runs", "view"},
    "runs": {"view"},
    "view": set(),
}
TORCH_FREE = """
specdemo specdemo.words.message specdemo.errors specdemo.events specdemo.events.trace
specdemo.events.thoughts specdemo.loading.catalog specdemo.loading.templates
specdemo.measure.report specdemo.measure.table specdemo.doctor.run
specdemo.cli.main specdemo.cli.options
specdemo.ui.view.feed specdemo.ui.view.kept specdemo.ui.view.settings specdemo.ui.view.texts
specdemo.ui.runs.limits specdemo.ui.runs.queue
specdemo.ui.page.frame specdemo.ui.page.hints specdemo.ui.page.alone
"""
# Folder and kinds of files: the most lines and files that it may have. A number may fall and never rises.
SIZES = {
    ("specdemo", ".py"): (28555, 136),
    ("specdemo/cli", ".py"): (620, 3),
    ("specdemo/doctor", ".py"): (379, 3),
    ("specdemo/drafters", ".py"): (3230, 16),
    ("specdemo/engine", ".py"): (2494, 11),
    ("specdemo/events", ".py"): (1840, 7),
    ("specdemo/loading", ".py"): (2225, 11),
    ("specdemo/measure", ".py"): (2492, 13),
    ("specdemo/runtime", ".py"): (6608, 24),
    ("specdemo/servers", ".py"): (1206, 6),
    ("specdemo/trials", ".py"): (469, 4),
    ("specdemo/ui", ".py"): (5901, 30),
    ("specdemo/words", ".py"): (209, 3),
    ("specdemo/ui/static", ".js"): (10389, 64),
    ("specdemo/ui/static", ".css"): (1700, 17),
    ("specdemo/words", ".json"): (3848, 2),
    ("assets/training", ".py .md"): (799, 10),
    ("tests", ".py .js .mjs"): (32192, 220),
}
# Imports each of the modules that it is given, and names those that fail.
IMPORTS = """
import importlib, sys
sys.modules |= dict.fromkeys(("torch", "transformers", "gradio"))
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {error}")
from specdemo import Params, Round, Trace
"""


@cache
def modules() -> dict[str, Path]:
    """Dotted name within the package -> file."""
    named = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = file
    return named


def syntax_tree(file: Path) -> ast.Module:
    """Parsed without a collection of garbage in between.

    While Python before 3.11.8 builds a tree, a destructor can let another thread build one (a logged
    traceback does), and then both raise "AST constructor recursion depth mismatch" (CPython issue 106905).
    """
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def imported(file: Path) -> set[str]:
    """Modules that a file imports, within functions and for types alone, too."""
    found = set()
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def own_imports(file: Path) -> set[str]:
    """The package's own modules that a file imports, whole or a name of theirs."""
    known = modules().keys()
    own = {
        name.removeprefix("specdemo").removeprefix(".")
        for name in imported(file)
        if name.split(".")[0] == "specdemo"
    }
    return {name if name in known else name.rpartition(".")[0] for name in own}


def floor(module: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if module.split(".")[0] in floor)


def size_of(folder: str, suffixes: str) -> tuple[int, int]:
    files = [file for file in (ROOT / folder).rglob("*") if file.suffix in suffixes.split()]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files), len(files)


def test_no_folder_grows():
    sizes = {key: size_of(*key) for key in SIZES}
    over = {" ".join(key): found for key, found in sizes.items() if any(map(int.__gt__, found, SIZES[key]))}
    assert not over, "lines and files: take out as much as comes in"


def test_imports_run_downward():
    for name, file in modules().items():
        for other in own_imports(file):
            same_folder = name.split(".")[0] == other.split(".")[0]
            assert same_folder or floor(other) < floor(name), f"{name} imports {other}"


def test_only_drafters_know_a_family_s_file():
    """The others ask the table of drafters, and what all of them have in common."""
    shared = {"drafters.table", "drafters.base", "drafters.vocabulary"}
    for name, file in modules().items():
        known = {other for other in own_imports(file) if other.startswith("drafters.")}
        assert known <= shared or name.startswith("drafters"), f"{name} imports {known}"


def test_the_rooms_of_the_page_know_only_those_below():
    for name, file in modules().items():
        for other in own_imports(file):
            if name.startswith("ui.") and other.startswith("ui."):
                room, known = name.split(".")[1], other.split(".")[1]
                assert room == known or known in ROOMS_OF_UI[room], f"{name} imports {other}"


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


def test_no_two_test_files_have_one_name():
    """pytest imports them by their names alone, and leaves out the second of two with the same one."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_each_mistake_can_be_planted_and_has_its_tests():
    """Those of toy/mistakes.txt: what one replaces stands in its file once."""
    counts = [(one.name, (PACKAGE / one.file).read_text("utf-8").count(one.right)) for one in MUTANTS]
    assert [(name, count) for name, count in counts if count != 1] == []
    tests = {test.partition("::")[0] for one in MUTANTS for test in one.tests}
    assert [test for test in tests if not (ROOT / test).is_file()] == []


def test_these_can_be_imported_without_torch():
    """The real package, in a process in which importing torch, transformers or gradio raises."""
    command = [sys.executable, "-c", IMPORTS, *TORCH_FREE.split()]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""


def test_gradio_and_the_loaders_live_in_one_place_each():
    loaders = {"transformers.AutoModelForCausalLM", "transformers.QuantoConfig"}
    for name, file in modules().items():
        names = imported(file)
        if "gradio" in {module.split(".")[0] for module in names}:
            assert name.startswith("ui.page."), name
        assert not loaders & names or name == "loading.read", name
