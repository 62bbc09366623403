"""The command line: `flowfabric`, or `python -m flowfabric`."""
