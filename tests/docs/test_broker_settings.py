"""``docs/broker.md``: the table of settings has each setting of a broker, its default, and whether it is mutable."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.settings import java_name
from rmq_core.store.config import JAVA_NAMES, StoreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "broker.md").read_text("utf-8")
TABLE = PAGE.split("### Settings and defaults\n", 1)[1].split("\n## ", 1)[0]


def format_value(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings() -> Iterator[tuple[str, str, bool]]:
    """Name in Java, default as text, and whether a request may change it."""
    for option in fields(BrokerConfig):
        yield java_name(option), format_value(option.default), bool(option.metadata.get("mutable"))
    for option in fields(StoreConfig):
        if option.name in JAVA_NAMES and option.default is not MISSING:
            yield JAVA_NAMES[option.name], format_value(option.default), False


def test_the_table_has_all_settings_with_their_defaults() -> None:
    named = re.findall(r"(\*\*)?`([\w.]+)=([^`]*)`", TABLE)
    assert sorted((name, value, bool(bold)) for bold, name, value in named) == sorted(settings())
