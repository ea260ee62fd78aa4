"""Names of tables: a path, or ``catalog.schema.table``."""

import re
from typing import Final

_IN_CATALOG: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)


def in_catalog(table: str) -> tuple[str, str, str] | None:
    """Return catalog, schema and table of a name in a catalog; None if it is a path, as ``./a.b.c`` is."""
    if _IN_CATALOG.fullmatch(table) is None:
        return None
    catalog, schema, name = table.split(".")
    return catalog, schema, name
