"""Layers for multi-token prediction that a target has."""
