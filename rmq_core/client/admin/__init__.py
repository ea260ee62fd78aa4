"""Administration of a cluster by a client: topics, groups, consumer offsets, statistics and settings of brokers."""
