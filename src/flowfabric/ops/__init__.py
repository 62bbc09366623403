"""One operation per file: read, decide, write. A body awaits nothing but its transaction: it runs on every backend."""
