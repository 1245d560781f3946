"""Whether speculation pays for somebody's work, with which drafter and draft length, and how sure that is."""
