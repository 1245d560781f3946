"""DFlash and DSpark heads."""
