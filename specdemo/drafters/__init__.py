"""What drafts: by each method (ways.py), and as a pair's drafter (kinds.py)."""
