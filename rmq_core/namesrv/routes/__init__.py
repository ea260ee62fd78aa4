"""Routes that a name server knows: topics, the brokers that have them, and who sees which; no network."""
