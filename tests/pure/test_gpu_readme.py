"""The commands of tests/gpu/README.md exist, with these options. Read only: none is run."""

import re
import shlex
from pathlib import Path

import pytest

from specdemo.cli.options import check_bench_options, params_from_arguments, parser
from specdemo.doctor.run import check_sections
from specdemo.loading.request import resolve
from tests.gpu import micro, soak

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "tests" / "gpu" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if "python -m" in line]
INLINE = re.findall(r"`(python -m [^`]*)`", README)


@pytest.mark.parametrize("command", [*COMMANDS, *INLINE])
def test_a_command_can_be_run(command):
    words = shlex.split(re.split(r" [|>] ", command)[0])
    name, *given = words[words.index("-m") + 1 :]
    match name:
        case "specdemo":
            arguments = parser().parse_args(given)
            if given[0] == "doctor":
                check_sections(arguments.sections)
            else:
                params_from_arguments(arguments)
            if given[0] == "bench":
                check_bench_options(arguments)
        case "pytest":
            assert (ROOT / given[0]).exists() and ((ROOT / given[0]).is_file() or given[1:3] == ["-m", "gpu"])
        case "tests.gpu.soak":
            assert resolve(soak.options().parse_args(given).pair, device="cpu")
        case "tests.gpu.micro":
            micro.options().parse_args(given)
        case "tests.kernel_errors":
            assert (ROOT / "tests/kernel_errors.py").exists() and not given
        case _:
            pytest.fail(f"{name} is not known")


def test_each_step_says_what_it_proves_what_to_expect_and_what_to_do():
    *steps, still_open = re.split(r"^## ", README, flags=re.MULTILINE)[1:]
    assert len(steps) == 5 and len(COMMANDS) == 13 and still_open.startswith("What is still open")
    for step in steps:
        assert re.match(r"\d\. .* \(\d+ minutes?[,)]", step)
        assert "**Proves**" in step and "**Expect**" in step
        assert "**If it fails:**" in step or "**What it decides:**" in step
