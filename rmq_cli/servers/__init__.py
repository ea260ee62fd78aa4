"""Commands that run servers: name server, broker, or both in one process."""
