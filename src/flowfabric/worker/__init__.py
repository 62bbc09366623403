"""The worker: it claims work, gives it slots, keeps its leases alive and gives back what it cannot finish."""
