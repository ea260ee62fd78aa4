"""Stores that tests write, rebuild and verify, and what is in them."""
