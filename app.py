"""The page: python app.py, then open the address that it prints. Hugging Face Spaces starts this file too."""

import os
import socket
import sys
from argparse import ArgumentTypeError, Namespace

from specdemo.cli.main import FAILED, run, say
from specdemo.cli.options import Parser, add_pair_options, pair_request

PROGRAM = "app.py"


def main(argv: list[str] | None = None) -> int:
    on_spaces = "SPACE_ID" in os.environ
    parser = Parser(
        prog=PROGRAM, description="Serves the page that shows speculative decoding, token by token."
    )
    add_pair_options(parser)
    parser.add_argument(
        "--host",
        default="0.0.0.0" if on_spaces else "127.0.0.1",
        help="address to listen on (default %(default)s)",
    )
    parser.add_argument("--port", type=_port, default=7860, help="0 takes a free one (default %(default)s)")
    return run(_serve, parser.parse_args(argv), PROGRAM)


def _serve(arguments: Namespace) -> int:
    request, host = pair_request(arguments), arguments.host
    try:
        port = _free_port(host, arguments.port)
    except OSError as error:
        reason = f"{error.strerror}; choose with --host and --port"
        return say(f"cannot listen on {host}, port {arguments.port}: {reason}", FAILED, PROGRAM)

    from transformers.utils import logging

    from specdemo.loading.load import plan
    from specdemo.ui.models import Models
    from specdemo.ui.page import build, launch

    logging.disable_progress_bar()  # the hub's, too: the page shows the progress
    models = Models(request)
    if request["target"] is not None:
        plan(models.default_request)  # a mistyped directory is reported before the page starts
    demo = build(models)
    try:
        say(f"the page is at {launch(demo, host, port)}", program=PROGRAM)
        pair = models.get()  # the page is up already; a run that starts now waits for this
        on = f"{pair.info.device} ({pair.info.device_name}), {pair.dtype_reason}"
        say(f"{pair.info.name} is ready on {on}", program=PROGRAM)
        del pair  # so that the pool can drop it
        demo.block_thread()
    finally:
        demo.close(verbose=False)
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
