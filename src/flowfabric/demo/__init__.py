"""The tour that `flowfabric demo` runs: a shop, its processes and output, and the chapters."""
