"""Operations of workers: claim, renew, record steps, and give up a lease."""
