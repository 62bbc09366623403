"""The demo: the shop, its processes and output, and the chapters of the tour."""
