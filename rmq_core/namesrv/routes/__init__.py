"""Routes of a name server: topics, their brokers, and zones; no network."""
