"""Numbers for messages. A page ignores what has a lower number than what it shows."""

import threading
import time

_lock = threading.Lock()
_latest = 0


def later_number() -> int:
    """Larger than all that this process has given, and after a restart than what a page still has: the time
    in ms, as far as the clock does not go back."""
    global _latest
    with _lock:
        _latest = max(_latest + 1, time.time_ns() // 1_000_000)
        return _latest
