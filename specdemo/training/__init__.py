"""Trains a small target and drafter from text files: see ``python -m specdemo.training --help``."""
