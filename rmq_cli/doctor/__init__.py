"""``rmq doctor``: how open a running broker or name server is."""
