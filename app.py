"""The page: python app.py, then open the address that it prints. Hugging Face Spaces starts this file too."""

import os
import socket
import sys
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

from specdemo.cli.main import FAILED, run_command, tell
from specdemo.cli.options import Parser, add_pair_options, add_server_options, pair_request, server_key
from specdemo.errors import LoadError, TookTooLong
from specdemo.servers.client import ServerError
from specdemo.servers.software import ServedPair

if TYPE_CHECKING:
    from specdemo.ui.page.serve import Ended
    from specdemo.ui.runs.models import Models

PROGRAM = "app.py"


def main(argv: list[str] | None = None) -> int:
    on_spaces = "SPACE_ID" in os.environ
    about = "Serves the page that shows speculative decoding, token by token."
    parser = Parser(prog=PROGRAM, description=about)
    add_pair_options(parser)
    add_server_options(parser, several=True)
    parser.set_defaults(pair=os.environ.get("SPECDEMO_PAIR"))  # a Space has variables and no command line
    host = "0.0.0.0" if on_spaces else "127.0.0.1"
    hosted = "for a page that anyone may visit: listed pairs only, and tighter limits (default on a Space)"
    allow = (
        "with --hosted: pairs that visitors may choose besides the usual ones, if memory suffices "
        "(default: what SPECDEMO_ALLOW says)"
    )
    proxy = (
        "where nobody reaches this server but through a proxy that sets X-Forwarded-For: take visitors' "
        "addresses from there (default on a Space); the proxy's own name needs --allow-host"
    )
    name = (
        "a name that this page is reached by, such as a proxy's, besides localhost, this machine's name "
        "and the address that it listens on; can be given several times. Other names are refused, since any "
        "web site could use them to drive a private page; with --hosted all are let in unless some are given"
    )
    allowed = os.environ.get("SPECDEMO_ALLOW", "")  # a Space starts this file without arguments
    add, switch = parser.add_argument, {"action": BooleanOptionalAction, "default": on_spaces}
    add("--host", default=host, help="address to listen on (default %(default)s)")
    add("--hosted", help=hosted, **switch)
    add("--allow", type=_names, default=allowed, metavar="NAME,NAME", help=allow)
    add("--behind-proxy", help=proxy, **switch)
    add("--allow-host", action="append", type=_host, default=[], metavar="NAME", help=name)
    add("--port", type=_port, default=7860, help="0 takes a free one (default %(default)s)")
    return run_command(_serve, parser.parse_args(argv), PROGRAM)


def _serve(arguments: Namespace) -> int:
    request, host = pair_request(arguments), arguments.host
    key = server_key(arguments)
    try:
        port = _free_port(host, arguments.port)
    except OSError as error:
        reason = f"{error.strerror}; choose with --host and --port"
        return tell(f"cannot listen on {host}, port {arguments.port}: {reason}", FAILED, PROGRAM)

    from transformers.utils import logging

    from specdemo import zero
    from specdemo.loading.load import plan
    from specdemo.ui.page.page import build_page
    from specdemo.ui.page.serve import close, ended_by_signals, launch
    from specdemo.ui.runs.limits import HOSTED, LOCAL
    from specdemo.ui.runs.models import Choice, GivenServer, Models
    from specdemo.ui.runs.queue import RunQueue

    logging.disable_progress_bar()  # the hub's, too: the page shows the progress
    limits = replace(HOSTED if arguments.hosted else LOCAL, behind_proxy=arguments.behind_proxy)
    servers = [GivenServer(url, key) for url in arguments.server or []]
    models = Models(request, limits, arguments.allow, servers)
    if request["target"] is not None or request["drafter"] is not None:
        plan(models.default_request)  # a mistyped directory is reported before the page starts
    queue = RunQueue(limits)
    if zero.GPU:
        for name in models.arguments:  # what the package moves to its GPUs must be there before the page is
            zero.place(models.get(Choice(name)))
    demo = build_page(models, queue, limits)
    with ended_by_signals() as ended:
        try:
            with redirect_stdout(StringIO()):  # Gradio prints the address of its tools, whatever it is told
                address = launch(demo, queue, host, port, limits, arguments.allow_host)
            tell(f"the page is at {address}", program=PROGRAM)
            # The page is up already; a run that starts now waits for this.
            Thread(target=_load_first, args=(models, ended), name="first load", daemon=True).start()
            if error := ended.get():
                raise error
            tell("ending: a second Ctrl+C ends it at once", program=PROGRAM)
        finally:
            close(demo, queue)
    return 0


def _load_first(models: "Models", ended: "Ended") -> None:
    """Loads the pair that the server was started with, and tells how. In public the page goes on without it,
    since there are other pairs; on one's own machine only while a slow download goes on, or where a
    server cannot be used now. Any other error ends the server."""
    try:
        pair = models.get()
    except Exception as error:
        is_loads = isinstance(error, LoadError)
        if is_loads and (models.limits.hosted or isinstance(error, (TookTooLong, ServerError))):
            tell(f"{error}; the page goes on with the other pairs", program=PROGRAM)
        else:
            ended.put(error)
        return
    on = f" on {pair.info.device} ({pair.info.device_name}), {pair.dtype_reason}"
    how = f": {pair.about}" if isinstance(pair, ServedPair) else on
    tell(f"{pair.info.name} is ready{how}", program=PROGRAM)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _host(text: str) -> str:
    from specdemo.ui.front.checks import host_name

    try:
        return host_name(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"must be a whole number from 0 to 65535, not {text!r}")
    return int(text)


def _free_port(host: str, port: int) -> int:
    """The port itself, or a free one for 0. OSError if it cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return probe.getsockname()[1]


def end(status: int) -> NoReturn:
    """Ends the process at once. Python would wait for threads that load pairs, and those inside torch would
    abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end(main())
