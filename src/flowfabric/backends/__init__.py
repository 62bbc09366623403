"""One package per database: connections, error translation, and the SQL that must differ."""
