"""Reads the config.json of DFlash 2 heads: a DFlash head's, with the sizes of convolutions and selector."""

from specdemo.drafters.config_reader import MOST_TOKENS, MOST_UNITS
from specdemo.drafters.dflash.format import DFlashReader
from specdemo.drafters.dflash2.head import DFlash2Config, DFlash2Head

DEFAULTS = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}


class DFlash2Reader(DFlashReader):
    head = DFlash2Head

    def config(self, tensors: set[str]) -> DFlash2Config:
        is_authors = self.found.format == "authors"  # who have no defaults
        defaults = dict.fromkeys(DEFAULTS) if is_authors else DEFAULTS | {"sliding_window_non_causal": True}
        self.raw = defaults | self.raw
        of_block = super().config(tensors)
        tokens, size = of_block.vocab_size, of_block.hidden_size
        if of_block.draft_vocab_size != tokens:
            raise self.error(
                f"draft_vocab_size must be vocab_size, {tokens:,}, not {of_block.draft_vocab_size:,}"
            )
        group = self._size("conv_group_size", size)
        if size % group:
            raise self.error(f"conv_group_size must divide hidden_size, {size:,}, and {group:,} does not")
        return DFlash2Config(
            **vars(of_block),
            taps=self._size("conv_kernel_size", of_block.block_size),
            group_size=group,
            selector_rank=self._size("selector_rank", MOST_UNITS),
            candidates=self._size("selector_top_k", min(tokens, MOST_TOKENS)),
        )

    def _size(self, name: str, most: int) -> int:
        size = self.number(name, most, DEFAULTS[name])
        assert size is not None
        return size
