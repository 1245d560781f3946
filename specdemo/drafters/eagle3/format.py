"""Reads the config.json of EAGLE-3 heads: that of the speculators library, and that of their authors."""

from specdemo.drafters.config_reader import EMBEDDINGS, MOST_UNITS, ConfigReader
from specdemo.drafters.eagle3.head import LAYER_IDS, Eagle3Config, Eagle3Head


class Eagle3Reader(ConfigReader):
    head = Eagle3Head

    def in_file(self, name: str) -> str:
        return name.replace("layers.0.", "midlayer.", 1) if self.found.format == "authors" else name

    def config(self, tensors: set[str]) -> Eagle3Config:
        ids = self._layer_ids()
        layer = self.layer_config()
        default = 32000 if self.found.format == "speculators" else layer.vocab_size
        config = Eagle3Config(
            layer=layer,
            draft_vocab_size=self.draft_vocab_size(default, layer.vocab_size),
            layer_ids=ids,
            features=len(ids or (0, 0, 0)),
            target_hidden_size=self.number("target_hidden_size", MOST_UNITS),
            norm_before_residual=self.flag("norm_before_residual"),
            norm_before_fc=self.flag("norm_before_fc"),
            fc_norm=self.flag("fc_norm"),
            norm_output=self.flag("norm_output"),
            own_embeddings=EMBEDDINGS in tensors,
        )
        if config.norm_before_fc and config.fc_norm:
            raise self.error("norm_before_fc and fc_norm cannot both be true")
        return config

    def _layer_ids(self) -> tuple[int, ...] | None:
        ids, own = self.raw.get(LAYER_IDS), self.raw.get("eagle_config")  # some authors' place for it
        if ids is None and isinstance(own, dict):
            ids = own.get(LAYER_IDS)
        return self.ids_of_layers(LAYER_IDS, ids)
