"""Copies of what stands earlier in the text."""
