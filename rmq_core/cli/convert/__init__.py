"""``rmq convert``: a store of another layout."""
