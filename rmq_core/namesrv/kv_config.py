"""The name server's key-value configuration: keys and values by namespace, in the file format of Java.

``{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicTest":"broker-a:4"}}}``

Each change writes a temporary file and renames it, where Java's name server writes in place: so the file is always
complete. A change that cannot be written is not made. Source: ``KVConfigManager``.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rmq_core.remoting.bodies.codec import BodyStruct, decode_body, encode_body
from rmq_formats.errors import DecodeError, StoreError
from rmq_formats.storage.contained import write_file

_Tables = dict[str, dict[str, str]]


class _KVConfigFile(BodyStruct, frozen=True, kw_only=True):
    config_table: _Tables = {}  # noqa: RUF012 # made anew for each struct


class KVConfig:
    """Keys and values by namespace, persisted in a file."""

    def __init__(self, path: Path) -> None:
        """Load the file, if the file exists.

        Raises:
            StoreError: the file cannot be read. Java's name server starts empty then, and overwrites the file later.
        """
        self._path = path
        try:
            self._tables = decode_body(path.read_bytes(), _KVConfigFile).config_table
        except FileNotFoundError:
            self._tables = {}
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        except DecodeError as error:
            raise StoreError(f"{path}: {error}") from error

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None for an unknown key."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return a namespace's keys and values; None for an unknown namespace."""
        table = self._tables.get(namespace)
        return None if table is None else MappingProxyType(table)

    def size_with(self, namespace: str, key: str, value: str) -> int:
        """Return the size of the file after ``put`` with the same arguments, bytes."""
        tables = {**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}}
        return len(encode_body(_KVConfigFile(config_table=tables)))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; a StoreError leaves the former one."""
        self._replace(namespace, {**self._tables.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key, if present, but not its namespace; a StoreError leaves the key."""
        if self.get(namespace, key) is not None:
            self._replace(namespace, {name: value for name, value in self._tables[namespace].items() if name != key})

    def _replace(self, namespace: str, table: dict[str, str]) -> None:
        tables = {**self._tables, namespace: table}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path.parent, self._path.name, encode_body(_KVConfigFile(config_table=tables)))
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
        self._tables = tables
