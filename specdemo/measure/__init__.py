"""Timing: rounds in turns with plain ones, what follows from them, and what is advised."""
