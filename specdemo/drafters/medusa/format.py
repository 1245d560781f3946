"""Reads the config.json of Medusa heads in vLLM's format: a model_type "medusa", and the heads' sizes."""

from specdemo.drafters.config_reader import MOST_DRAFT_LAYERS, MOST_TOKENS, MOST_UNITS, ConfigReader
from specdemo.drafters.medusa.head import MedusaConfig

MOST_HEADS = 64


class MedusaReader(ConfigReader):
    def config(self, tensors: set[str]) -> MedusaConfig:
        vocab_size = self._required("vocab_size", MOST_TOKENS)
        truncated = self.raw.get("truncated_vocab_size")
        if truncated not in (None, vocab_size):
            raise self.error(
                f"truncated_vocab_size must be vocab_size, {vocab_size}, not {ascii(truncated)[:60]}"
            )
        return MedusaConfig(
            vocab_size,
            self._required("hidden_size", MOST_UNITS),
            self._required("num_heads", MOST_HEADS),
            self._required("num_hidden_layers", MOST_DRAFT_LAYERS),
            bias=self.flag("medusa_fc_bias"),
            shares_output=self.flag("original_lm_head"),
        )

    def _required(self, name: str, most: int) -> int:
        value = self.number(name, most)
        if value is None:
            raise self.error(
                f"{name} must be given, as in vLLM's format (its authors' names no sizes and is not read)"
            )
        return value
