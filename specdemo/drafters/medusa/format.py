"""Reads the config.json of Medusa heads: vLLM's, with a model_type "medusa" and the heads' sizes, and that of
their authors, which says nothing of sizes."""

import re
from collections.abc import Mapping

from specdemo.drafters.config_reader import MOST_DRAFT_LAYERS, MOST_TOKENS, MOST_UNITS, ConfigReader
from specdemo.drafters.medusa import OF_AUTHORS
from specdemo.drafters.medusa.head import MedusaConfig, MedusaHead
from specdemo.runtime.files import MEDUSA_FILE

MOST_HEADS = 64
NAMES = (  # of tensors: vLLM's, which are the head's own, and what the authors call them
    (r"blocks\.(\d+)\.layers\.(\d+)\.", r"\1.\2.linear."),
    (r"lm_heads\.(\d+)\.", r"\1.{layers}."),
)


class MedusaReader(ConfigReader):
    head = MedusaHead

    def config(self, tensors: Mapping[str, list[int]]) -> MedusaConfig:
        if (layers := self._authors_layers()) is not None:
            return self._of_authors(layers, tensors)
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

    def _of_authors(self, layers: int, tensors: Mapping[str, list[int]]) -> MedusaConfig:
        """The heads that the file holds: those that were published are more than their config.json says."""
        output = tensors.get(f"0.{layers}.weight", [])
        if len(output) != 2:
            raise self.error(
                f"it says nothing of sizes, so {MEDUSA_FILE} must be here already (`hf download ID` gets "
                f"it), with a tensor 0.{layers}.weight (a pickled medusa_lm_head.pt is not loaded)"
            )
        heads = sum(re.fullmatch(rf"\d+\.{layers}\.weight", name) is not None for name in tensors)
        sizes = (("tokens", output[0], MOST_TOKENS), ("units", output[1], MOST_UNITS))
        for what, size, most in (*sizes, ("heads", heads, MOST_HEADS)):
            if not 1 <= size <= most:
                raise self.error(
                    f"it says nothing of sizes, and {MEDUSA_FILE} is of {size:,} {what}, where 1 to {most:,} "
                    "are allowed"
                )
        return MedusaConfig(*output, heads, layers, bias="0.0.linear.bias" in tensors)

    def _authors_layers(self) -> int | None:
        """The residual layers of each head in the authors' format; None in vLLM's."""
        return self._required("medusa_num_layers", MOST_DRAFT_LAYERS) if OF_AUTHORS in self.raw else None

    def in_file(self, name: str) -> str:
        if (layers := self._authors_layers()) is not None:
            for own, theirs in NAMES:
                name = re.sub(own, theirs.format(layers=layers), name)
        return name

    def origin(self) -> tuple[str | None, int | None]:
        base = self.raw.get("base_model_name_or_path")
        return base if isinstance(base, str) else None, None

    def _required(self, name: str, most: int) -> int:
        value = self.number(name, most)
        if value is None:
            raise self.error(f"{name} must be a whole number from 1 to {most:,}, and is not given")
        return value
