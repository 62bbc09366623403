"""Operations of workers: claim and renew leases, record steps, and give up a lease."""
