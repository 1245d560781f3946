"""What drafts: a file for a family, and the table of them all (table.py)."""
