"""Notifications about commits, so that waiting callers rarely poll. They are hints: nothing depends on them."""
