"""The background duties: one file each, and the loop that runs them. Safe in every process at once, and twice over."""
