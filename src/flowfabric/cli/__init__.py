"""The command line: `flowfabric`, `ff` or `python -m flowfabric`."""
