"""A running vLLM server as the engine: what it tells of its rounds becomes the same events. vLLM itself is
not imported."""
