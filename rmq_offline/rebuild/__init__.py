"""Rebuilds ConsumeQueue and Index of a store from its CommitLog."""
