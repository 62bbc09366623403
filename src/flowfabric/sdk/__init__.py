"""Durable functions: what a program writes tasks and steps with, and what runs them."""
