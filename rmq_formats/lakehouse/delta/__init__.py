"""Delta tables: their log, their files, their place, and what only Delta can do."""
