"""Durable calls, one kind per file: steps, sleeps, signals, approvals, children, groups, sagas and transactions."""
