"""Converts a store into one of another layout: the old one is only read, the new one is published whole."""
