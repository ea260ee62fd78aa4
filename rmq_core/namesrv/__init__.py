"""The name server: brokers register their topics with it, clients fetch topic routes from it."""
