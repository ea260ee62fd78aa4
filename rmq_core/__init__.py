"""RocketMQ as a running system: broker, store, name server, clients, replication, and the command line ``rmq``."""
