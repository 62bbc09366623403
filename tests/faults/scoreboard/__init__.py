"""The scoreboard: every fault suite in one table, with how often each fault was injected and what it broke."""
