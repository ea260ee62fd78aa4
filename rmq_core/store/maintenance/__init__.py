"""Background work of a broker's store: allocates files ahead, flushes them, and deletes expired ones."""
