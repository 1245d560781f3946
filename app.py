"""The page: python app.py, then open the address that it prints. Hugging Face Spaces starts this file, too."""

import argparse
import os
import socket
import sys

from specdemo.cli.main import FAILED, Parser, add_pair_options, pair_request, run


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        prog="app.py", description="Serves the page that shows speculative decoding, token by token."
    )
    add_pair_options(parser)
    on_spaces = "SPACE_ID" in os.environ
    parser.add_argument(
        "--host",
        default="0.0.0.0" if on_spaces else "127.0.0.1",
        help="address to listen on (default %(default)s)",
    )
    parser.add_argument("--port", type=_port, default=7860, help="0 takes a free one (default %(default)s)")
    return run(_serve, parser.parse_args(argv))


def _serve(arguments: argparse.Namespace) -> int:
    request = pair_request(arguments)
    try:
        port = _free(arguments.host, arguments.port)
    except OSError as error:
        return _say(
            f"cannot listen on {arguments.host}, port {arguments.port}: {error.strerror}; choose with --host and --port",
            FAILED,
        )

    from transformers.utils import logging

    from specdemo.loading.load import plan
    from specdemo.ui.models import Models
    from specdemo.ui.page import build, launch

    logging.disable_progress_bar()  # the hub's, too: the page shows the progress
    models = Models(request)
    if request["target"] is not None:
        plan(models.started)  # a mistyped place should be said before a page is there
    demo = build(models)
    try:
        _say(f"the page is at {launch(demo, arguments.host, port)}")
        pair = models.get()  # the page is there already; whoever presses Generate now waits for this
        _say(
            f"{pair.info.name} is ready on {pair.info.device} ({pair.info.device_name}), {pair.dtype_reason}"
        )
        del pair
        demo.block_thread()
    finally:
        demo.close(verbose=False)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {text!r}")
    return int(text)


def _free(host: str, port: int) -> int:
    """The port, or for 0 one that is free; OSError when nobody can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return probe.getsockname()[1]


def _say(message: str, status: int = 0) -> int:
    print(f"app.py: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
