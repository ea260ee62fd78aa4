"""The Spark data sources ``rmq_consumequeue`` and ``rmq_index``."""
