"""Which drafter and draft length pay, and how to type them into a server."""
