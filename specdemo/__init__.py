"""SpecDemo: speculative decoding that shows every accepted and rejected token, and why."""

from specdemo.events import VERSION as __version__
from specdemo.events import Finished, Params, Round, Started
from specdemo.loading import load_pair
from specdemo.pair import Pair, PairError
from specdemo.session import Run, stream
from specdemo.trace import Trace

__all__ = ["Finished", "Pair", "PairError", "Params", "Round", "Run", "Started", "Trace", "__version__", "load_pair", "stream"]
