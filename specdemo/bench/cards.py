"""Graphics cards by what their makers publish, and what share of a memory's bandwidth is reached: of the copy
bandwidth, which is measured, and of the specification."""

from dataclasses import dataclass
from math import inf

from specdemo.events.metrics import ratio


@dataclass(frozen=True)
class Accelerator:
    """bandwidth: of copies, bytes read and written a second. node_us: an empty kernel in a graph. peak:
    operations of products a second. specified: the published bandwidth of its memory; None: not known."""

    bandwidth: float
    node_us: float
    peak: float = inf
    specified: float | None = None


@dataclass(frozen=True)
class Card:
    """device_name: what CUDA calls it. bandwidth: of its memory, bytes a second. peak: of dense products in
    bfloat16 with sums in float32, operations a second. memory: bytes. copied: what a copy reached on one,
    bytes a second (bench/README.md); None: the same share of the bandwidth as on the H200."""

    name: str
    device_name: str
    bandwidth: float
    peak: float
    memory: float
    copied: float | None = None

    @property
    def accelerator(self) -> Accelerator:
        """Kernels are taken to cost on each card what they cost on the H200."""
        copied = self.copied or self.bandwidth * H200_COPIED / CARDS["h200"].bandwidth
        return Accelerator(copied, H200_NODE_US, self.peak, self.bandwidth)


H200_COPIED, H200_NODE_US = 3.78e12, 0.91  # measured on one (2026-11-26, `doctor`)
# From NVIDIA's data sheets of the H100 SXM, H200 SXM, L4 and DGX B200 (of one of its eight GPUs), and its
# white papers on Ada and RTX Blackwell. Peaks are without sparsity. Other cards have similar names and other
# memories (H100 PCIe, RTX PRO 6000 Server Edition), so a device's name must be equal to be known.
CARDS = {
    "h100": Card("H100 SXM", "NVIDIA H100 80GB HBM3", 3.35e12, 989e12, 80e9, copied=2.75e12),
    "h200": Card("H200 SXM", "NVIDIA H200", 4.8e12, 989e12, 141e9, copied=H200_COPIED),
    "b200": Card("B200", "NVIDIA B200", 8.0e12, 2250e12, 180e9),
    "rtx-4090": Card("RTX 4090", "NVIDIA GeForce RTX 4090", 1.008e12, 165.2e12, 24e9),
    "l4": Card("L4", "NVIDIA L4", 0.3e12, 121e12, 24e9),
    "rtx-pro-6000": Card(
        "RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1.792e12, 503.8e12, 96e9
    ),
}


def specified_bandwidth(device_name: str) -> float | None:
    """Bytes a second of the card that CUDA calls so; None where it is not in CARDS."""
    known = {card.device_name: card.bandwidth for card in CARDS.values()}
    return known.get(device_name)


@dataclass(frozen=True)
class Reached:
    """Shares of a memory's bandwidth. None: not measured, or nothing is specified."""

    of_copy: float | None
    of_specification: float | None

    def in_words(self, digits: int = 0) -> str:
        """What there is. digits: of the percentages, after the point."""
        told = (self.of_copy, "of the copy bandwidth"), (self.of_specification, "of the specification")
        known = [f"{share:.{digits}%} {which}" for share, which in told if share is not None]
        if self.of_specification is None and known:
            known.append("specification not known")
        return ", ".join(known)


def reached(rate: float | None, copied: float | None, specified: float | None) -> Reached:
    """What is reached by reading at this rate, of these two bandwidths. All: bytes a second."""
    return Reached(ratio(rate, copied), ratio(rate, specified))


def bandwidth_in_words(copied: float, specified: float | None) -> str:
    share = reached(copied, None, specified).of_specification
    of_it = "its specification is not known" if share is None else f"{share:.0%} of the specification"
    return f"{copied / 1e9:,.1f} GB/s, read and written ({of_it})"
