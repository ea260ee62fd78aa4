"""``rmq inspect``: a summary of a store, or of one of its files."""
