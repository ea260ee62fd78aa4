"""Tables of a broker: topics, subscription groups, consumer offsets, clients, filters, queue locks, waiting pulls."""
