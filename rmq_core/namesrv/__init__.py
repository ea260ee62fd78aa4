"""The name server: brokers register with it, clients ask it where topics are."""
