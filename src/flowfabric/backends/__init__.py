"""The databases: connections, error translation, and only the SQL that must differ."""
