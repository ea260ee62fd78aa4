"""Writes rows as a RocketMQ store: CommitLog, ConsumeQueue and Index, published in one step."""
