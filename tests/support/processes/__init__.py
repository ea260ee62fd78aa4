"""Processes that tests start, stop and kill."""
