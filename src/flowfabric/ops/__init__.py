"""Operations: each reads, decides and writes in one transaction, which is all that it awaits, on every backend."""
