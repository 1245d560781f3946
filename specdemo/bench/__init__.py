"""python -m specdemo bench: this engine and transformers in turns."""
