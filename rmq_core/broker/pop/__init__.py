"""POP: consumers pop messages for an invisible time; unacknowledged messages return."""
