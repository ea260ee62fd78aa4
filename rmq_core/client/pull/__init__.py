"""Pull requests of a consumer: subscriptions, queue offsets, and records decoded to messages."""
