"""Executions: their records and states, the table of transitions, and the decisions about leases and attempts."""
