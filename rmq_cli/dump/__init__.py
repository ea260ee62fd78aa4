"""``rmq dump``: the records and entries of a store's files, as text or JSON."""
