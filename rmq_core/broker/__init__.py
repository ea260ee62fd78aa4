"""The broker: what producers and consumers ask, answered out of a store, on one event loop."""
