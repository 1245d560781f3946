"""Models that draft in parallel: PARD."""
