"""``docs/broker.md`` and ``docs/namesrv.md`` list each setting, its default, and whether it is mutable."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.remoting.settings import ServerSettings, java_name
from rmq_core.store.config import JAVA_NAMES, StoreConfig

PAGES = Path(__file__).parents[2] / "docs"
Setting = tuple[str, str, bool]


def format_value(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def server_settings(kind: type[ServerSettings]) -> Iterator[Setting]:
    """Name in Java, default as text, and whether a request may change it."""
    for option in fields(kind):
        yield java_name(option), format_value(option.default), bool(option.metadata.get("mutable"))


def store_settings() -> Iterator[Setting]:
    for option in fields(StoreConfig):
        if option.name in JAVA_NAMES and option.default is not MISSING:
            yield JAVA_NAMES[option.name], format_value(option.default), False


@pytest.mark.parametrize(
    ("page", "heading", "settings"),
    [
        ("broker.md", "### Settings and defaults", [*server_settings(BrokerConfig), *store_settings()]),
        ("namesrv.md", "## Settings", [*server_settings(NamesrvConfig)]),
    ],
    ids=["broker", "namesrv"],
)
def test_the_table_has_all_settings_with_their_defaults(page: str, heading: str, settings: list[Setting]) -> None:
    section = (PAGES / page).read_text("utf-8").split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    named = re.findall(r"^\| .*", section, re.MULTILINE)
    rows = re.findall(r"(\*\*)?`([\w.]+)=([^`]*)`", "\n".join(named))
    assert sorted((name, value, bool(bold)) for bold, name, value in rows) == sorted(settings)
