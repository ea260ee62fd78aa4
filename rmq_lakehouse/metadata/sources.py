"""Data sources of broker state beside messages: consumer offsets, topics, groups, pending timer messages.

``spark.read.format("rmq_offsets").load(STORE)``, or ``.option("namesrv", …).load()``.
"""

from abc import abstractmethod
from collections.abc import Mapping, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from rmq_formats.arrow.schema import CONSUMER_OFFSETS, GROUPS, TIMERS, TOPICS
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.catalog import get_source_options, table_options, with_options
from rmq_lakehouse.metadata.options import (
    GROUPS_OPTIONS,
    OFFSETS_OPTIONS,
    TIMERS_OPTIONS,
    TOPICS_OPTIONS,
    MetadataOptions,
    metadata_options,
)
from rmq_lakehouse.metadata.reader import MetadataReader, Table


class _MetadataSource(DataSource):
    """Data source of a table; a subclass defines its columns, its options and its reader."""

    columns: pa.Schema
    known_options: tuple[str, ...]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    def _options(self, options: Mapping[str, str]) -> MetadataOptions:
        return metadata_options(self.name(), options, self.known_options)

    def schema(self) -> StructType:
        """Return the schema: all columns, or those of the option ``columns``."""
        columns = self._options(get_source_options(self._given)).columns
        return with_options(schemas.project(schemas.of_arrow(self.columns), columns), self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options(table_options(schema, self._given))
        return MetadataReader(self._table(), schemas.of_arrow(self.columns), options, schema)

    @abstractmethod
    def _table(self) -> Table:
        """Return how it is read; kernels are imported there."""


class OffsetsSource(_MetadataSource):
    """Data source of consumer offsets and lag, a row a group and queue."""

    columns = CONSUMER_OFFSETS
    known_options = OFFSETS_OPTIONS

    @classmethod
    def name(cls) -> str:
        return "rmq_offsets"

    def _table(self) -> Table:
        from rmq_lakehouse.metadata.tables import OFFSETS  # noqa: PLC0415

        return OFFSETS


class TopicsSource(_MetadataSource):
    """Data source of topics, a row a topic and broker."""

    columns = TOPICS
    known_options = TOPICS_OPTIONS

    @classmethod
    def name(cls) -> str:
        return "rmq_topics"

    def _table(self) -> Table:
        from rmq_lakehouse.metadata.tables import TOPICS_TABLE  # noqa: PLC0415

        return TOPICS_TABLE


class GroupsSource(_MetadataSource):
    """Data source of consumer groups, a row a group and broker."""

    columns = GROUPS
    known_options = GROUPS_OPTIONS

    @classmethod
    def name(cls) -> str:
        return "rmq_groups"

    def _table(self) -> Table:
        from rmq_lakehouse.metadata.tables import GROUPS_TABLE  # noqa: PLC0415

        return GROUPS_TABLE


class TimersSource(_MetadataSource):
    """Data source of timer messages that are not delivered yet, of stores on local disks."""

    columns = TIMERS
    known_options = TIMERS_OPTIONS

    @classmethod
    def name(cls) -> str:
        return "rmq_timers"

    def _table(self) -> Table:
        from rmq_lakehouse.metadata.tables import TIMERS_TABLE  # noqa: PLC0415

        return TIMERS_TABLE
