"""What visitors share, so that no network address keeps the others out. Without Gradio."""

from collections import Counter
from collections.abc import Mapping


def of_the_most(addresses: Mapping[str, str], held: Mapping[str, int] | None = None) -> str:
    """Which one is dropped when there are too many: the first of an address that holds the most. addresses:
    by name. held: what each address holds; by default how many of these."""
    held = Counter(addresses.values()) if held is None else held
    return max(addresses, key=lambda name: held[addresses[name]])


class Arriving:
    """Bytes of bodies that are not complete or not answered, by address. most: so many together, or somewhat
    more if they are of several addresses."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[str] = Counter()

    def add(self, address: str, count: int) -> bool:
        """Whether there is room for them. For an address that has no more than its share there always is."""
        self.held[address] += count
        return self.held.total() <= self.most or self.held[address] <= self.most / len(self.held)

    def remove(self, address: str, count: int) -> None:
        self.held[address] -= count
        if not self.held[address]:
            del self.held[address]
