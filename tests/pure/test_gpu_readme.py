"""The commands of tests/gpu/README.md exist, with these options. Read only: none is run."""

import re
import shlex
from pathlib import Path

from specdemo.cli.options import check_bench_options, params_from_arguments, parser
from specdemo.doctor.run import check_sections
from specdemo.loading.request import resolve
from tests.gpu import micro, soak

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "tests" / "gpu" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if "python -m" in line]
COMMANDS += re.findall(r"`(python -m [^`]*)`", README)


def check(command):
    words = shlex.split(re.split(r" [|>] ", command)[0])
    name, *given = words[words.index("-m") + 1 :]
    if name == "specdemo":
        arguments = parser().parse_args(given)
        if given[0] == "doctor":
            check_sections(arguments.sections)
        else:
            params_from_arguments(arguments)
        if given[0] == "bench":
            check_bench_options(arguments)
    elif name == "pytest":
        assert (ROOT / given[0]).is_file() or (ROOT / given[0]).is_dir() and given[1:3] == ["-m", "gpu"]
    elif name == "tests.gpu.soak":
        assert resolve(soak.options().parse_args(given).pair, device="cpu")
    elif name == "tests.gpu.micro":
        micro.options().parse_args(given)
    else:
        assert name == "tests.kernel_errors" and not given


def test_each_command_can_be_run():
    assert len(COMMANDS) > 12
    for command in COMMANDS:
        check(command)
