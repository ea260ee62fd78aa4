"""Scans a CommitLog record by record: segments, splits, dispatch, and the bytes of ConsumeQueue and Index files."""
