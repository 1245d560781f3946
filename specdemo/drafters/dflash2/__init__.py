"""DFlash 2 heads."""
