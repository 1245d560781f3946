"""Trains a small target and drafter from a folder of text files: see ``python -m specdemo.training --help``."""
