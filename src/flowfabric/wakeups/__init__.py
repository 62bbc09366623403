"""Wake-ups: hints that something may be there, so that nobody has to look often. Nothing depends on them."""
