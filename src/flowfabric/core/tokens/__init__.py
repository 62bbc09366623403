"""Waitpoint tokens: their format, and the key ring that signs them."""
