"""One package per database: its connections, the translation of its errors, and the SQL that differs from the other."""
