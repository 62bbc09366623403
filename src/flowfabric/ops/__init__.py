"""Operations: each one reads, decides and writes in one transaction, and awaits nothing but that transaction."""
