"""Reads the config.json of P-EAGLE heads: an EAGLE-3 head's in the speculators format, with a mask token."""

from specdemo.drafters.eagle3.format import Eagle3Reader
from specdemo.drafters.peagle.head import PEagleConfig, PEagleHead


class PEagleReader(Eagle3Reader):
    head = PEagleHead

    def config(self, tensors: set[str]) -> PEagleConfig:
        of_eagle = super().config(tensors)
        return PEagleConfig(**vars(of_eagle), mask_token_id=self.mask_token(of_eagle.vocab_size))
