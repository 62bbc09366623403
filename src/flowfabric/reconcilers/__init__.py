"""Background duties such as lease expiry, timers and retention, and the loop that runs them.

Every process may run all duties at the same time: each duty locks its rows and decides again under the lock.
"""
