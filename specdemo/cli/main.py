"""python -m specdemo: generate, bench, advise, pairs, doctor, export.

Torch and transformers take seconds to import, so options and Params are checked before. (The names of pairs,
devices and dtypes are checked after, with the request.) Errors are one sentence on standard error.
"""

import json
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specdemo.cli.options import (
    ALL,
    check_advise_options,
    check_bench_options,
    pair_request,
    params_from_arguments,
    parser,
    server_key,
)
from specdemo.errors import LoadError, PairError, failure, redacted
from specdemo.events import METHODS, Params, Round, is_tree, words_of_row
from specdemo.events.params import as_text, rule_in_words
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.loading.catalog import CATALOGUE, QUANTIZE_WHERE, WORKS
from specdemo.words.message import harmless

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair
    from specdemo.servers.software import ServedPair

FAILED, WRONG, INTERRUPTED = 1, 2, 130  # exit statuses
TOLD_EVERY, SAVED_EVERY = 30.0, 60.0  # s: a long measurement, where nobody sees each step
STYLES = {
    "accepted": "\033[4;32m",  # green, underlined
    "rejected": "\033[9;31m",  # red, struck through
    "resampled": "\033[1;31m",  # red, bold
    "bonus": "\033[1;34m",  # blue, bold
    "sampled": "\033[34m",  # blue
}
RESET = "\033[0m"


class Failure(Exception):
    """A failure outside the program, though the request was right. The message is one sentence."""


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if sys.stdout is None:
        return tell("standard output is closed, so there is nowhere to write to", WRONG)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")  # whatever the locale is
    commands = {"generate": _generate, "bench": _bench, "advise": _advise}
    commands |= {"pairs": _pairs, "doctor": _doctor, "export": _export}
    return run_command(commands[arguments.command], arguments)


def run_command(command: Callable[[Namespace], int], arguments: Namespace, program: str = "specdemo") -> int:
    """Calls the command and returns its exit status. If the command fails, prints one sentence and returns
    the status for that failure."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # what matters is said below
    try:
        return command(arguments)
    except (Failure, LoadError) as error:
        return tell(error, FAILED, program)
    except (PairError, ValueError) as error:
        return tell(error, WRONG, program)
    except KeyboardInterrupt:
        return tell("interrupted", INTERRUPTED, program)
    except BrokenPipeError:  # the reader of standard output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        sentence = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        return tell(redacted(sentence), FAILED, program)


def tell(message: object, status: int = 0, program: str = "specdemo") -> int:
    """Prints one line on standard error; returns the status."""
    print(harmless(f"{program}: {message}"), file=sys.stderr, flush=True)
    return status


def put(text: str = "") -> None:
    """Writes to standard output what is not generated text."""
    print(harmless(text), flush=True)


def _generate(arguments: Namespace) -> int:
    params, request = params_from_arguments(arguments), pair_request(arguments)
    key = server_key(arguments)
    about_pair = [value for name, value in request.items() if name != "quantize"]
    about_pair += request["quantize"].values()
    if arguments.server is not None and any(value is not None for value in about_pair):
        raise ValueError("server: give --server or options about a pair, not both")
    if arguments.trace not in (None, "-"):
        _check_writable("trace", arguments.trace)

    from specdemo.measure.turns import settle
    from specdemo.session import stream

    pair = _load(request) if arguments.server is None else _connect(arguments.server, key)
    known_notes = pair.notes
    printer = None if arguments.trace == "-" else Printer(sys.stdout, sys.stderr)
    with stream(pair, arguments.prompt, params) as run:
        try:
            for event in run:
                if printer and isinstance(event, Round):
                    printer.round(event, run.trace.text)
        finally:  # an interrupted run has a trace, too
            run.close()
            if printer:
                printer.finish(run.trace.text)
            with suppress(KeyboardInterrupt):
                for _ in settle(run):
                    pass
            if arguments.trace == "-":
                put(run.trace.to_json())
            elif arguments.trace is not None:
                _save("trace", run.trace.to_json(), arguments.trace)
            for note in pair.notes:
                if note not in known_notes:
                    tell(note)
            for line in summary(run.trace):
                tell(line)
    return 0


def _load(request: dict[str, Any]) -> "Pair":
    from specdemo.loading.load import load_pair

    pair = load_pair(**request)
    size, info = pair.bytes_held, pair.info
    drafter = f", drafter {size.drafter / 1e6:,.0f} MB" if size.drafter else ""
    sizes = f"target {size.target / 1e6:,.0f} MB{drafter}"
    about = f"{info.name} on {info.device} ({info.device_name}), {sizes}; {pair.dtype_reason}"
    for line in (about, *pair.notes):
        tell(line)
    return pair


def _connect(url: str, key: str | None) -> "ServedPair":
    from specdemo.servers.pair import connect

    pair = connect(url, key)
    for line in (f"{pair.info.name}: {pair.about}", *pair.notes):
        tell(line)
    return pair


def _check_writable(option: str, file: str) -> None:
    """Checks, before the models load, that the file can be written, so that no finished run is lost to a
    mistyped path."""
    path = Path(file)
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {file} is a directory")
    if not path.parent.is_dir():
        raise ValueError(f"{option} cannot be saved: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} cannot be saved: no permission to write {file}")


def _save(what: str, text: str, file: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"the {what} could not be saved to {file}: {error.strerror}") from None


def _bench(arguments: Namespace) -> int:
    params, request = params_from_arguments(arguments), pair_request(arguments)
    check_bench_options(arguments)
    if arguments.methods is not None:
        return _compare(arguments, params, request)

    from specdemo.measure.bench import bench, bench_text

    how = (arguments.prompts, arguments.repeats, arguments.prompt_tokens)
    result = bench(_load(request), params, *how)
    put(bench_text(result))
    put(json.dumps(result, default=asdict))
    return 0


def _compare(arguments: Namespace, params: Params, request: dict[str, Any]) -> int:
    """The table of drafters. If the comparison is interrupted, the table has what is measured so far."""
    from specdemo.loading.catalog import others_at_hand
    from specdemo.measure import settings as of
    from specdemo.measure.compare import compare, result_of
    from specdemo.measure.prompts import prompts_for
    from specdemo.measure.table import methods_text
    from specdemo.zero import can_be_timed_in_turns

    pairs = [_load(request)]
    names = of.methods_at_hand(pairs[0]) if arguments.methods == [ALL] else [*arguments.methods, "none"]
    if any(METHODS[name].is_by_drafter for name in names):
        for name in others_at_hand(pairs[0].info.name):
            kinds = request["quantize"] | ({"drafter": None} if of.has_head(name) else {})
            pairs.append(_load(request | {"name": name, "quantize": kinds}))
    settings = of.settings_for(pairs, names, params)
    settings = of.with_trees(settings, params, arguments.trees)
    prompts = prompts_for(pairs[0], arguments.prompts)
    rows, status = [], 0
    try:
        how = (arguments.repeats, arguments.repeats, can_be_timed_in_turns(pairs[0]))
        for so_far in compare(settings, prompts, *how):
            rows = so_far.rows
            if so_far.measuring and sys.stderr.isatty():
                tell(f"{so_far.done} of {so_far.total} texts; now {so_far.measuring}")
    except KeyboardInterrupt:
        if not rows:
            raise
        status = tell("interrupted: this is what was measured before", INTERRUPTED)
    result = result_of(settings, prompts, arguments.repeats, rows)
    put(methods_text(result))
    put(json.dumps(result, default=asdict))
    return status


def _advise(arguments: Namespace) -> int:
    """What to set for a kind of work. If it is interrupted or fails, it tells what was measured before."""
    params, request = params_from_arguments(arguments), pair_request(arguments)
    params = replace(params, alternatives=0)
    check_advise_options(arguments)
    if arguments.report is not None:
        _check_writable("report", arguments.report)

    from specdemo.measure.advise import advise
    from specdemo.measure.prompts import prompts_of, read_prompts
    from specdemo.measure.report import advice_object, advice_text, page_of
    from specdemo.measure.results import OWN
    from specdemo.measure.settings import check_asked

    check_asked(arguments.drafters)
    file = arguments.prompts
    prompts = {OWN: read_prompts(file)} if file is not None else prompts_of(arguments.work or WORKS)
    command = shlex.join(["python", "-m", "specdemo", *sys.argv[1:]])
    pair = _load(request)
    course = advise(pair, arguments.drafters, prompts, params, arguments.budget, command)
    first = next(course)
    measured, status = first.measured, 0
    for note in measured.notes:
        if note not in pair.notes:  # these have been told
            tell(note)
    told = saved = -SAVED_EVERY
    try:
        for progress in chain([first], course):
            measured = progress.measured
            if sys.stderr.isatty() or measured.seconds > told + TOLD_EVERY:
                told = measured.seconds
                left = max(0.0, arguments.budget - measured.seconds)
                tell(f"{progress.doing}; at most {left:,.0f} s more")
            if arguments.report is not None and measured.seconds > saved + SAVED_EVERY:
                saved = measured.seconds
                _save("report", page_of(measured), arguments.report)
    except KeyboardInterrupt:
        measured, status = replace(measured, ended="interrupted"), INTERRUPTED
    except Exception as error:  # what was measured before stays
        measured, status = replace(measured, ended="failed"), tell(failure(error), FAILED)
    put(advice_text(measured))
    put(json.dumps(advice_object(measured)))
    if arguments.report is not None:
        _save("report", page_of(measured), arguments.report)
    return status


def _pairs(arguments: Namespace) -> int:
    """Lists the pairs by what drafts."""
    width = max(map(len, CATALOGUE))
    for kind in dict.fromkeys(entry.drafter_kind for entry in CATALOGUE.values()):
        entries = [entry for entry in CATALOGUE.values() if entry.drafter_kind == kind]
        put(f"{words_of_row('kinds', kind, 'label')}: {words_of_row('kinds', kind, 'sentence')}")
        for entry in entries:
            gated = "; gated: accept the terms on the hub and set HF_TOKEN" if entry.gated else ""
            weights = f"; loaded in {entry.quantize} unless you choose otherwise" if entry.quantize else ""
            put(f"  {entry.name:<{width}} {entry.target} + {entry.drafter}")
            size = f"{entry.gigabytes:g} GB in bfloat16{weights}"
            put(f"  {'':<{width}} {entry.about}; {size}{gated}; tried: {entry.tried}")
        put()
    put(f"quantised weights: {QUANTIZE_WHERE}")
    return 0


def _export(arguments: Namespace) -> int:
    from specdemo.ui.page.alone import export

    try:
        export(Path(arguments.folder), arguments.language)
    except OSError as error:
        raise ValueError(f"folder must be one that can be written to, not {arguments.folder!r}") from error
    return tell(f"the class's page is {Path(arguments.folder) / 'index.html'}")


def _doctor(arguments: Namespace) -> int:
    """Runs the doctor. Progress goes to standard error, the report to standard output."""
    from specdemo.doctor import run as doctor

    sections = list(doctor.SECTIONS) if arguments.sections is None else arguments.sections
    doctor.check_sections(sections)
    checks, status = [], 0
    try:
        for section in sections:
            seconds = doctor.SECTIONS[section]
            tell(f"{section}, at most {seconds} s")
            for check in doctor.run_section(section, seconds):
                checks.append(check)
                tell(doctor.line(check))
    except KeyboardInterrupt:
        status = tell("interrupted: this is what was found before", INTERRUPTED)
    put(doctor.report(checks))
    return status or doctor.exit_status(checks)


class Printer:
    """Writes a run's text as its trace gets it, coloured on a terminal. Rejected tokens are no part of it:
    they go to standard error, where both are the same screen, each before the token that replaced it."""

    def __init__(self, out: TextIO, err: TextIO):
        self.out, self.err = out, err
        self.coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.shows_rejected = self.coloured and err.isatty()
        self.pending: list[tuple[str, str]] = []  # (text, fate) of pieces that are not written yet
        self.written = 0  # characters of the text

    def round(self, a_round: Round, text: str) -> None:
        """text: the trace's, with this round."""
        judged = (token for token in a_round.draft if token.fate in ("accepted", "rejected"))
        self.pending += [(token.text, token.fate) for token in judged]
        if a_round.next:
            self.pending.append((a_round.next.text, a_round.next.source))
        self._write_until(len(text))

    def finish(self, text: str) -> None:
        """Writes the rest of `text`, the whole text, and a newline."""
        self._write_until(len(text))
        rest = text[self.written :]  # an incomplete character, if the run was interrupted in one
        print(harmless(rest) if self.out.isatty() else rest, file=self.out, flush=True)

    def _write_until(self, length: int) -> None:
        """Writes pending pieces until so many characters of the text are written."""
        while self.pending:
            piece, fate = self.pending.pop(0)
            if fate == "rejected":
                if self.shows_rejected:
                    self._write(self.err, piece.replace("\n", "\N{RETURN SYMBOL}"), fate)
                continue
            shown = piece[: length - self.written]
            self._write(self.out, shown, fate)
            self.written += len(shown)
            if rest := piece[len(shown) :]:
                self.pending.insert(0, (rest, fate))
                return

    def _write(self, file: TextIO, text: str, fate: str) -> None:
        if file.isatty():
            text = harmless(text)
        if text:
            file.write(f"{STYLES[fate]}{text}{RESET}" if self.coloured else text)
            file.flush()


def _write(value: float | None, pattern: str) -> str:
    return "–" if value is None else pattern.format(value)


def summary(trace: Trace) -> tuple[str, str]:
    """Two lines: whether speculation paid, and the run's numbers."""
    stats, params, rounds = trace.stats, trace.params, trace.rounds
    per_round = _write(stats.mean_tokens_per_round, "{:.2f}")
    is_auto = params.gamma == "auto" and not params.tree
    chosen = [one.gamma for one in rounds if one.gamma is not None] if is_auto else []
    by_arrival = stats.arrival_ms is not None  # a server's
    count = max(0, stats.target_forwards - stats.rounds)  # of the prompt, or of parts of the text again
    fed_apart = any(one.target_forwards > 1 for one in rounds)
    what_was_read = "prompt, and text fed again or token by token, read" if fed_apart else "prompt read"
    numbers = (
        f"{stats.tokens} tokens in {stats.rounds} rounds ({per_round} a round)",
        f"gamma {min(chosen)} to {max(chosen)}" if chosen else "",
        f"tree {as_text(params.tree)}" if any(is_tree(one.draft) for one in rounds) else "",
        f"acceptance rate {_write(stats.acceptance_rate, '{:.0%}')}",
        f"{_write(stats.tokens_per_second, '{:.1f}')} tokens/s{' by arrival' if by_arrival else ''}",
        "" if by_arrival else f"cost ratio {_write(stats.cost_ratio, '{:.3f}')}",
        f"first after {_write(stats.ttft_ms, '{:.0f}')} ms",
        "" if by_arrival else f"{what_was_read} in {count} other target forward{'' if count == 1 else 's'}",
        rule_in_words(params),
        f"ended by {trace.finish}",
        f"seed {params.seed}" if params.temperature else "greedy",
    )
    return verdict(trace, trace.finish).text, ", ".join(filter(None, numbers))
