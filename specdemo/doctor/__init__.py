"""What works on this machine's GPU: python -m specdemo doctor."""
