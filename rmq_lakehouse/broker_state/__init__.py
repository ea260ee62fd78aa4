"""The Spark data sources ``rmq_offsets``, ``rmq_topics``, ``rmq_groups`` and ``rmq_timers`` of broker state."""
