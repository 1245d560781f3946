"""What followed the end of the text before."""
