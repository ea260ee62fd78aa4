"""Tools for stores at rest: verify, rebuild, repair, convert, write, generate, replay, and what their jobs share."""
