"""RocketMQ as a running system: broker, store, name server, clients, replication, proxy."""
