"""Dispatch of new CommitLog records to ConsumeQueue and Index."""
