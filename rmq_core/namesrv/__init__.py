"""The name server: brokers register topics, clients fetch topic routes."""
