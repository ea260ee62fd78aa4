"""Producers: send messages, single or in batches, in transactions, or as requests with replies."""
