"""A smaller model, with the target's tokenizer or another one."""
