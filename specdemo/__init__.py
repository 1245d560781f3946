"""SpecDemo: speculative decoding that shows every accepted and rejected token, and why.

The public names are loaded when they are first used (PEP 562), so importing the package does not load torch.
"""

# ruff: noqa: F401 - `__all__` lists the names by _HOME
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from specdemo.errors import PairError
    from specdemo.events import Finished, Params, Round, Started, __version__
    from specdemo.events.trace import Trace
    from specdemo.loading.load import load_pair
    from specdemo.loading.pair import Pair
    from specdemo.session import Run, generate, stream
    from specdemo.ui.page.alone import show

_HOME = {
    "Finished": "specdemo.events",
    "Pair": "specdemo.loading.pair",
    "PairError": "specdemo.errors",
    "Params": "specdemo.events",
    "Round": "specdemo.events",
    "Run": "specdemo.session",
    "Started": "specdemo.events",
    "Trace": "specdemo.events.trace",
    "__version__": "specdemo.events",
    "generate": "specdemo.session",
    "load_pair": "specdemo.loading.load",
    "show": "specdemo.ui.page.alone",
    "stream": "specdemo.session",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'specdemo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
