"""Names of tables: a path, or ``catalog.schema.table``; and names as SQL has them."""

import os
import re
from pathlib import Path
from typing import Final

from rmq_formats.errors import OptionError

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_AUTHORITY: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?/")  # scheme, host and port of a URI
_IN_CATALOG: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)


def quoted(name: str) -> str:
    """Write a name of a column, a table or a schema as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def in_catalog(table: str) -> tuple[str, str, str] | None:
    """Return catalog, schema and table of a name in a catalog; None if it is a path, as ``./a.b.c`` is."""
    if _IN_CATALOG.fullmatch(table) is None:
        return None
    catalog, schema, name = table.split(".")
    return catalog, schema, name


def placed(table: str, beside: Path | None = None) -> str:
    """Return the absolute path of a path below ``beside``; a URI and a name in a catalog stay as they are.

    Delta reads a relative path in SQL as a name in a schema, and executors run in directories of their own.
    """
    if not table or _URI.match(table) or in_catalog(table):
        return table
    return str((beside or Path.cwd()) / table)


def table_place(table: str) -> str:
    """Return a text that is the same for all names of one table: its path without links, its URI, or its name."""
    return table.rstrip("/") if _URI.match(table) or in_catalog(table) else os.path.realpath(table)


def check_hadoop_path(option: str, path: str) -> None:
    """Refuse a path with a colon in a name, which Hadoop cannot list. Raises OptionError."""
    if ":" in _AUTHORITY.sub("/", path, count=1):
        raise OptionError(f"{option} {path}: Hadoop takes no ':' in names of files and directories. Give another path")
