"""Notifications about commits, so that waiting callers rarely poll.

Notifications are only hints: callers also poll, so a lost notification causes only a delay.
"""
