"""What a load tells while it goes on."""

from collections.abc import Callable
from io import StringIO

from tqdm import tqdm

from specdemo.loading.request import Part

# Called with what is being done, and the share of it that is finished, from 0 to 1 (None where it is not
# known).
OnProgress = Callable[[str, float | None], None]


def download_bar(part: Part, before: int, total: int, on_progress: OnProgress) -> type[tqdm]:
    """A progress bar for the hub's library that draws nothing and calls `on_progress` instead.

    For one file. before: bytes of the model's files before it. total: bytes of all of them.
    """
    furthest = 0.0

    class Bar(tqdm):
        monitor_interval = 0  # starts no monitor thread

        def __init__(self, *args: object, **options: object):
            super().__init__(*args, **options | {"file": StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            updated = super().update(n)
            # Other bars count files, or the same bytes once more.
            if self.unit == "B" and total and self.n > furthest:
                furthest = self.n
                done = min(before + furthest, total)
                megabytes = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
                on_progress(f"Downloading {part.role} {part.id}: {megabytes}", done / total)
            return updated

        def display(self, *_: object, **__: object) -> None:
            pass

    return Bar


def loading_weights(part: Part) -> str:
    return f"Loading the weights of {part.role} {part.id}"
