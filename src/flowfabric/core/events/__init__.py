"""Reading events: cursors, filters and named subscribers."""
