"""Writes the page of settings, ``docs/reference/settings.md``: of a broker, its store, and a name server.

``python -m tools.settings_page`` writes the page; the keys and defaults are those of the classes, and the descriptions
those of their docstrings.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rmq_core.broker.config import BrokerConfig
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.remoting.server import ServerLimits
from rmq_core.remoting.settings import java_name
from rmq_core.store.config import JAVA_NAMES, StoreConfig

PAGE: Final = Path(__file__).parents[1] / "docs/reference/settings.md"
_HEAD: Final = """# Settings
Settings of `broker.conf` (`rmq broker -c FILE`) and of a name server's file. Names, units and defaults are Java's,
unless a setting says otherwise. A setting without a description does what Java's does.
[Broker](../broker.md#settings) says where else settings come from, and which keys are ignored or refused.

*Running* marks what `rmq admin` and `mqadmin` change while the server runs (`updateBrokerConfig`,
`updateNamesrvConfig`). `python -m tools.settings_page` writes this page.
"""
_ATTRIBUTE: Final = re.compile(r"^        (\w+): (.*(?:\n            .*)*)", re.MULTILINE)


def _descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the description of each attribute of a class, and of the classes that it extends."""
    texts: dict[str, str] = {}
    for each in (ServerLimits, *reversed(kind.__mro__)):
        for name, text in _ATTRIBUTE.findall(each.__doc__ or ""):
            texts[name] = " ".join(text.split())
    return texts


def _default(option: Field[Any]) -> str:
    value = option.default
    if value is MISSING or value == "":
        return ""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _rows(kind: type[Any]) -> Iterator[str]:
    options = [option for option in fields(kind) if kind is not StoreConfig or option.name in JAVA_NAMES]
    keys = {option.name: java_name(option) for option in options}
    descriptions = _descriptions(kind)
    for option in sorted(options, key=lambda option: keys[option.name].lower()):
        text = re.sub(r"``(\w+)``", lambda name: f"`{keys.get(name[1], name[1])}`", descriptions.get(option.name, ""))
        running = "yes" if option.metadata.get("mutable") else ""
        yield f"| `{keys[option.name]}` | {_default(option)} | {running} | {text.replace('``', '`')} |"


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, kind in (("Broker", BrokerConfig), ("Store", StoreConfig), ("Name server", NamesrvConfig)):
        parts.append(f"\n## {title}\n| key | default | running | what it does |\n| --- | --- | --- | --- |\n")
        parts += [f"{row}\n" for row in _rows(kind)]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
