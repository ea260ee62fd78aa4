"""A broker whose clock tests set forward, see ``tests/broker``."""

from tests.broker.conftest import asker, clock, config, pytest_asyncio_loop_factories, store_config

__all__ = ["asker", "clock", "config", "pytest_asyncio_loop_factories", "store_config"]
