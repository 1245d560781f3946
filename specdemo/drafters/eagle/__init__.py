"""EAGLE heads of the first two versions, which differ in the tree alone."""
