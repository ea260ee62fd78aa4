"""``rmq offsets``: committed offsets of a store at rest."""
