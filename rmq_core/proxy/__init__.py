"""The proxy: the gRPC service of RocketMQ 5's clients, over the remoting protocol of name servers and brokers."""
