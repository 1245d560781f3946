"""Whether speculative decoding pays for some work, with which drafter, and on which card."""
