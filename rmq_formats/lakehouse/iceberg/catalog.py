"""Catalogs of Iceberg tables: an SQLite file beside the table, or one that pyiceberg is configured for, such as REST.

The catalog's row of a table is what a commit compares and swaps; without one Iceberg has no safe commit on a disk.
"""

import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from requests import RequestException
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.places import OBJECT_SCHEMES
from rmq_formats.lakehouse.table_name import in_catalog

CATALOG_FILE: Final = "iceberg_catalog.db"
CATALOG_NAME: Final = "rmq"
NAMESPACE: Final = "rmq"
_DELTA: Final = "_delta_log"
_BUSY_S: Final = 60  # how long a commit waits for another one's
_FIRST_PARTITION_ID: Final = 1000  # the specification begins there


class IcebergPlace:
    """Where one table is: its catalog, its name there, its directory.

    Args:
        table: path of the table's directory, or ``catalog.namespace.table``.
        options: properties of a catalog that is named, beyond those that pyiceberg's own configuration has.
    """

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        self.table = table
        self._options = dict(options)
        names = in_catalog(table)
        self._known: Catalog | None = None
        if names is not None:
            self._catalog_name, *identifier = names
            self.identifier = tuple(identifier)
            self.directory = None
            return
        directory = local_path(table, table)
        if directory is None:
            raise StoreError(
                f"{table}: a table in an object store is in a catalog: give --table catalog.namespace.name, with "
                "--catalog-option, or pyiceberg's configuration, for the catalog and its warehouse"
            )
        self.directory = directory.absolute()
        self.identifier = (NAMESPACE, self.directory.name)

    def load(self) -> Table | None:
        """Load the table as it is now; None if there is none. Raises StoreError."""
        if self.directory is not None and (self.directory / _DELTA).is_dir():
            raise StoreError(f"{self.table}: is a Delta table; give another --table, or --format delta")
        if self.directory is not None and not self._file.exists():
            return None
        with self.told():
            try:
                found = self.catalog().load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        local_path(found.metadata.location, self.table)
        return found

    def create(self, schema: Schema, partitions: tuple[str, ...], properties: Mapping[str, str]) -> None:
        """Create the table; nothing happens if another was faster.

        Args:
            schema: of it.
            partitions: names of columns.
            properties: of the table.

        Raises:
            StoreError: the catalog cannot be written, or puts tables where no export can write.
        """
        if self.directory is not None:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        with self.told():
            catalog = self.catalog()
            catalog.create_namespace_if_not_exists(self.identifier[:-1])
            location = None if self.directory is None else str(self.directory)
            if location is None:  # before anything is written there
                staged = catalog.create_table_transaction(self.identifier, schema)
                local_path(staged.table_metadata.location, self.table)
            spec = [
                PartitionField(schema.find_field(name).field_id, _FIRST_PARTITION_ID + at, IdentityTransform(), name)
                for at, name in enumerate(partitions)
            ]
            chosen = PartitionSpec(*spec) if spec else UNPARTITIONED_PARTITION_SPEC
            try:
                catalog.create_table(self.identifier, schema, location, chosen, properties=dict(properties))
            except TableAlreadyExistsError:
                return

    def catalog(self) -> Catalog:
        """Open the catalog, once."""
        if self._known is None:
            if self.directory is not None:
                place = URL.create("sqlite", database=str(self._file), query={"timeout": str(_BUSY_S)})
                io = f"{__name__.rpartition('.')[0]}.io.ForcedFileIO"
                self._known = SqlCatalog(CATALOG_NAME, uri=place.render_as_string(), **{"py-io-impl": io})
            else:
                self._known = load_catalog(self._catalog_name, **self._options)
            weakref.finalize(self, self._known.close)
        return self._known

    @property
    def _file(self) -> Path:
        assert self.directory is not None  # of a table that is in no other catalog
        return self.directory.parent / CATALOG_FILE

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell errors of the catalog in a line."""
        try:
            yield
        except (NoSuchTableError, RESTError, RequestException, SQLAlchemyError, OSError, ValueError) as error:
            said = re.split(r"\n|\(Background on", str(error))[0].strip()
            where = self._file if self.directory is not None else f"catalog {self._catalog_name}"
            raise StoreError(f"{self.table}: {where}: {said or type(error).__name__}") from error


def local_path(location: str, name: str) -> Path | None:
    """Return a location's path in this machine's file system; None if it is in an object store. Raises StoreError."""
    if "://" not in location:
        return Path(location.removeprefix("file:"))
    place = urlsplit(location)
    if place.scheme in OBJECT_SCHEMES:
        return None
    if place.scheme != "file":
        raise StoreError(
            f"{name}: its place is {location}; Iceberg tables are exported to a file system of this machine, or to S3"
        )
    return Path(place.path)  # as pyiceberg has it, which takes no escapes for such
