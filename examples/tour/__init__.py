"""The demo: its shop, its stage, and its chapters."""
