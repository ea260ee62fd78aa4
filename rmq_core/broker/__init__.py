"""The broker: serves producers, consumers and admin tools from a store, on one asyncio event loop."""
