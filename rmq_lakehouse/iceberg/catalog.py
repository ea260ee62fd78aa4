"""Catalogs of Iceberg tables: an SQLite file beside the table, or a catalog of pyiceberg's configuration, such as REST.

A commit compares and swaps the catalog's row of a table. Without a catalog Iceberg has no safe commit on a disk.
"""

import fcntl
import logging
import os
import re
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from requests import RequestException
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from rmq_formats.errors import StoreError
from rmq_lakehouse.directories import DELTA_LOG, check_new_table, other_table, table_around
from rmq_lakehouse.files import OBJECT_SCHEMES
from rmq_lakehouse.iceberg.io import TableFileSystem
from rmq_lakehouse.partitions import parse_partition
from rmq_lakehouse.table_name import in_catalog

CATALOG_FILE: Final = "iceberg_catalog.db"
CATALOG_NAME: Final = "rmq"
NAMESPACE: Final = "rmq"
_BUSY_S: Final = 60  # how long a commit waits for another one's
_FIRST_PARTITION_ID: Final = 1000  # the specification begins there
_log = logging.getLogger("rmq_lakehouse")
_CATALOG_ERRORS: Final = (
    NoSuchTableError, ValidationError, RESTError, RequestException, SQLAlchemyError, OSError, ValueError,
    EOFError,  # of a manifest list that was cut off
)  # fmt: skip


class IcebergLocation:
    """Location of one table, by the path of its directory or ``catalog.namespace.table``.

    ``options`` are properties of a named catalog, in addition to pyiceberg's own configuration.
    """

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        self.table = table
        self._options = dict(options)
        names = in_catalog(table)
        self._opened_catalog: Catalog | None = None
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
        """Load the newest version of the table; None without a table. Raises StoreError."""
        if self.directory is not None and (self.directory / DELTA_LOG).is_dir():
            raise StoreError(f"{self.table}: is a Delta table; give another --table, or --format delta")
        if self.directory is not None and not self._file.exists():
            return None
        with self.translate_errors():
            try:
                table = self.catalog().load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        self._check_location(local_path(table.metadata.location, self.table))
        return table

    def _check_location(self, path: Path | None) -> None:
        """Refuse a copied catalog file, whose table is beside the original file. Raises StoreError."""
        if self.directory is None or path is None or path.parent.resolve() == self.directory.parent.resolve():
            return
        raise StoreError(
            f"{self.table}: {self._file} has the table's files in {path}, as it was copied from there; give --table "
            f"{path}, or a new --table in a directory without {CATALOG_FILE}"
        )

    def create(self, schema: Schema, partitions: tuple[str, ...], properties: Mapping[str, str]) -> None:
        """Create the table, unless another writer was faster. Raises StoreError."""
        if self.directory is not None:
            self._check_around(self.directory)
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        with self.translate_errors():
            catalog = self.catalog()
        with self._creation_lock(), self.translate_errors():
            self._create_namespace(catalog)
            if catalog.table_exists(self.identifier):
                return  # before its metadata would pass for another table's
            location = self._location(catalog, schema)
            spec = [
                PartitionField(
                    schema.find_field(partition.column).field_id,
                    _FIRST_PARTITION_ID + at,
                    parse_transform(partition.iceberg_transform),
                    partition.field_name,
                )
                for at, partition in enumerate(map(parse_partition, partitions))
            ]
            partition_spec = PartitionSpec(*spec) if spec else UNPARTITIONED_PARTITION_SPEC
            try:
                catalog.create_table(self.identifier, schema, location, partition_spec, properties=dict(properties))
            except TableAlreadyExistsError:
                return

    def _create_namespace(self, catalog: Catalog) -> None:
        namespace = self.identifier[:-1]
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except IntegrityError:  # of an SQL database, where another writer was faster
            if not catalog.namespace_exists(namespace):
                raise

    def _creation_lock(self) -> AbstractContextManager[None]:
        """Lock the creation of a catalog's file or of a table; other catalogs do so themselves."""
        return nullcontext() if self.directory is None else _directory_lock(self.directory.parent)

    def _location(self, catalog: Catalog, schema: Schema) -> str:
        """Choose the new table's location, before anything is written: a directory of its own, by a uuid.

        The usual directory has another table's metadata where that table was renamed or dropped in its catalog, or is
        in another catalog. Raises StoreError.
        """
        if self.directory is None:
            staged = catalog.create_table_transaction(self.identifier, schema)
            location, io = staged.table_metadata.location.rstrip("/"), staged._table.io
        else:
            location, io = str(self.directory), catalog._load_file_io({}, str(self.directory))
        self._check_around(local_path(location, self.table))
        other_description = other_table(*files_of(location, io), None)
        if other_description is None:
            return location
        own_location = f"{location}-{uuid.uuid4()}"
        _log.warning(
            "%s: its directory has %s; the new table is made in %s", self.table, other_description, own_location
        )
        return own_location

    def _check_around(self, path: Path | None) -> None:
        check_new_table(self.table, None if path is None else table_around(path), None)

    def other_table(self, table: Table) -> str | None:
        metadata = table.metadata
        named = {PurePosixPath(path).name for path in metadata_files(table)}
        return other_table(*files_of(metadata.location.rstrip("/"), table.io), str(metadata.table_uuid), named)

    def catalog(self) -> Catalog:
        if self._opened_catalog is None:
            if self.directory is not None:
                url = URL.create("sqlite", database=str(self._file), query={"timeout": str(_BUSY_S)})
                io = f"{__name__.rpartition('.')[0]}.io.FsyncFileIO"
                with self._creation_lock():
                    self._opened_catalog = SqlCatalog(CATALOG_NAME, uri=url.render_as_string(), **{"py-io-impl": io})
            else:
                self._opened_catalog = load_catalog(self._catalog_name, **self._options)
            weakref.finalize(self, self._opened_catalog.close)
        return self._opened_catalog

    @property
    def _file(self) -> Path:
        assert self.directory is not None  # of a table that is in no other catalog
        return self.directory.parent / CATALOG_FILE

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except _CATALOG_ERRORS as error:
            reason = re.split(r"\n|\(Background on", str(error))[0].strip()
            source = self._file if self.directory is not None else f"catalog {self._catalog_name}"
            raise StoreError(f"{self.table}: {source}: {reason or type(error).__name__}") from error


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    """Lock a directory, where its file system has locks; the lock leaves no file."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def metadata_files(table: Table) -> Iterator[str]:
    """List the metadata files that a table names."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)


def files_of(location: str, io: FileIO) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a table's location, and the path of the location there."""
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    return TableFileSystem.of(location, io).io().fs_by_scheme(scheme, netloc), path


def local_path(location: str, name: str) -> Path | None:
    """Return a location's path in this machine's file system; None if it is in an object store. Raises StoreError."""
    if "://" not in location:
        return Path(location.removeprefix("file:"))
    url = urlsplit(location)
    if url.scheme in OBJECT_SCHEMES:
        return None
    if url.scheme != "file":
        raise StoreError(
            f"{name}: its place is {location}; Iceberg tables are exported to a file system of this machine, or to S3"
        )
    return Path(url.path)  # as pyiceberg has it, which takes no escapes for such
