"""The SQL that both backends share: one class per aggregate, statements, rows and migrations. No decisions."""
