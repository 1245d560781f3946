"""Two methods, of which the first that has a draft gives it."""
