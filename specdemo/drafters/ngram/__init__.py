"""N-grams that are counted in the text."""
