"""python -m specdemo bench: this engine and transformers in turns, and what the hardware would allow."""
