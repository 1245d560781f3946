"""python -m specdemo bench: this engine and transformers in turns, and what the hardware would allow."""

from specdemo.bench.report import quantized_table, table
from specdemo.bench.run import bench
from specdemo.bench.sweeps import quantize_sweep

__all__ = ["bench", "quantize_sweep", "quantized_table", "table"]
