"""The target's own first layers."""
