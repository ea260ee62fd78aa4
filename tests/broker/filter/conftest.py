"""A broker that filters by SQL92; see ``tests/broker/conftest.py``."""

from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import small_store


@pytest.fixture
def config() -> BrokerConfig:
    """Settings of the broker."""
    return BrokerConfig(listen_port=0, enable_property_filter=True)


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """Settings of the store."""
    return small_store(tmp_path / "store")
