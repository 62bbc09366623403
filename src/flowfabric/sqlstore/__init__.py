"""What the SQL backends share: statements, rows and records, the aggregates, migrations."""
