"""The CommitLog of a broker's store: encodes, appends and flushes records."""
