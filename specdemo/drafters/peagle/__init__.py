"""P-EAGLE heads."""
