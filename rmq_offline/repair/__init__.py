"""Repairs a damaged CommitLog, so that a broker starts on it, and rebuilds what is derived from it."""
