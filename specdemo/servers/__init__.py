"""A running server as the engine (vLLM, llama.cpp): what it tells of its rounds becomes the same events.
Their own packages are not imported."""
