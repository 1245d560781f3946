"""EAGLE-3 heads."""
