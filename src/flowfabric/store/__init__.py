"""The SQL code that both backends share: one store class per aggregate, statements, rows and migrations."""
