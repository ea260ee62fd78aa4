"""Delta tables: log, files, location, and what only Delta supports."""
