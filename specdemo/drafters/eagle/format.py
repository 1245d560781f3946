"""Reads the config.json of EAGLE heads, which is that of a Llama with one layer."""

from specdemo.drafters.config_reader import ConfigReader
from specdemo.drafters.eagle.head import EagleConfig, EagleHead


class EagleReader(ConfigReader):
    head = EagleHead

    def config(self, tensors: set[str]) -> EagleConfig:
        if "model" in self.raw:
            raise self.error("the sizes of its layers must stand beside each other, not in model")
        self.raw = self.raw | {"model_type": "llama"}  # its layers are Llama's whatever the target is
        return EagleConfig(
            self.layer_config(),
            fc_bias=self.flag("bias", "fc.bias" in tensors),
            qkv_bias=self.flag("qkv_bias"),
        )
