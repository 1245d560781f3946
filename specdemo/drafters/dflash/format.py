"""Reads the config.json of DFlash and DSpark heads: that of the speculators library, and for DFlash that of
its authors (a class DFlashDraftModel, and a `dflash_config`)."""

from specdemo.drafters.config_reader import MOST_UNITS, ConfigReader
from specdemo.drafters.dflash.head import DFlashConfig, DFlashHead, Markov, MarkovKind
from specdemo.runtime.decoder import RowMask

LARGEST_BLOCK = 1_000
MARKOV_KINDS: tuple[MarkovKind, ...] = ("vanilla", "gated", "rnn")
OWN = "dflash_config"  # where its authors keep what is not the layers'


class DFlashReader(ConfigReader):
    head = DFlashHead

    def config(self, tensors: set[str]) -> DFlashConfig:
        layer = self.layer_config()
        if layer.model_type != "qwen3":
            raise self.error(f"its layers must be those of qwen3, not of {layer.model_type}")
        is_authors = self.found.format == "authors"
        if is_authors:
            own = self.raw.get(OWN, {})
            if not isinstance(own, dict):
                raise self.error(f"{OWN} must be an object, not {type(own).__name__}")
            self.raw = self.raw | own  # either place is used
        block = self.number("block_size", LARGEST_BLOCK, 16 if is_authors else 8)
        anchor = self.flag("sample_from_anchor", self.found.kind == "dspark")
        if block < 2 - anchor:
            raise self.error(f"block_size must be at least {2 - anchor}, not {block}")
        size = self.raw.get("target_hidden_size")
        if size not in (None, layer.hidden_size):
            raise self.error(
                f"target_hidden_size must be {layer.hidden_size:,}, since the target's embeddings "
                f"are used, not {ascii(size)[:60]}"
            )
        tokens = layer.vocab_size if is_authors else 32000  # by default
        with_confidence = self.found.kind == "dspark" and self.flag("enable_confidence_head", True)
        return DFlashConfig(
            layer,
            block,
            self.mask_token(layer.vocab_size),
            self._layer_ids(is_authors),
            layer.vocab_size if is_authors else self.draft_vocab_size(tokens, layer.vocab_size),
            self._masks(layer, is_authors),
            samples_from_anchor=anchor,
            # The authors call the target's module; speculators trains on its raw weight.
            embedding_scale=self._factor("input_embedding_scale", None if is_authors else 1.0),
            logit_scale=self._factor("output_multiplier", 1.0) or 1.0,
            logit_cap=self._factor("final_logit_softcapping", None),
            markov=self._markov() if self.found.kind == "dspark" else None,
            has_confidence=with_confidence,
            guesses_block=is_authors and "block_size" not in self.raw,
            confidence_sees_token=self.flag("confidence_head_with_markov", True),
        )

    def _layer_ids(self, is_authors: bool) -> tuple[int, ...]:
        """The authors count a layer's output as its own, so it is the next one's input."""
        name = "target_layer_ids" if is_authors else "aux_hidden_state_layer_ids"
        ids = self.ids_of_layers(name, self.raw.get(name), or_null=False)
        return tuple(i + is_authors for i in ids or ())

    def _masks(self, layer, is_authors: bool) -> tuple[RowMask, ...]:
        """speculators counts a window from the anchor, the authors count it from each row."""
        types = getattr(layer, "layer_types", None) or ["full_attention"] * layer.num_hidden_layers
        causal = self.raw.get("is_causal") if is_authors else None
        if causal not in (None, True, False):
            raise self.error(f"is_causal must be true or false, not {ascii(causal)[:60]}")
        masks = []
        for kind in types:
            if kind == "full_attention":
                masks.append(RowMask(later=not causal))
                continue
            later = causal is False if is_authors else self.flag("sliding_window_non_causal")
            masks.append(RowMask(layer.sliding_window, from_first=not is_authors, later=later))
        return tuple(masks)

    def _markov(self) -> Markov | None:
        rank = self.raw.get("markov_rank", 256)
        if rank == 0:
            if self.flag("enable_confidence_head", True) and self.flag("confidence_head_with_markov", True):
                raise self.error("confidence_head_with_markov must be false where markov_rank is 0")
            return None
        kind = self.raw.get("markov_head_type", "vanilla")
        if kind not in MARKOV_KINDS:
            raise self.error(
                f"markov_head_type must be one of {', '.join(MARKOV_KINDS)}, not {ascii(kind)[:60]}"
            )
        return Markov(self.checked("markov_rank", rank, MOST_UNITS), kind)

    def _factor(self, name: str, default: float | None) -> float | None:
        """A factor that only the authors' format has. 0 is none, as it is there."""
        value = self.raw.get(name, default) if self.found.format == "authors" else default
        if value is None:
            return None
        if type(value) not in (int, float) or not -1e300 < value < 1e300:
            raise self.error(f"{name} must be a number, not {ascii(value)[:60]}")
        return float(value) or default
