"""Options of the sources of broker state.

- ``path``, ``paths`` and ``stores`` are stores at rest, as for ``rmq_commitlog``; ``namesrv`` is a running cluster,
  asked at its masters, with the options of credentials and TLS that ``rmq`` has.
- ``group`` chooses consumer groups, separated by commas; ``subscribe`` and ``subscribePattern`` choose topics.
- ``columns`` as everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rmq_formats.errors import OptionError
from rmq_formats.read.query import Query
from rmq_formats.spark.options import values
from rmq_formats.spark.options.read import OptionParser, SourceOptions, common_options
from rmq_lakehouse.live.options import ACCESS_OPTIONS, access_settings

_STORES: Final = ("path", "paths", "stores")
_CLUSTER: Final = ("namesrv", *ACCESS_OPTIONS)
_TOPICS: Final = ("subscribe", "subscribePattern")
OFFSETS_OPTIONS: Final = (*_STORES, *_CLUSTER, "group", *_TOPICS, "columns")
TOPICS_OPTIONS: Final = (*_STORES, *_CLUSTER, *_TOPICS, "columns")
GROUPS_OPTIONS: Final = (*_STORES, *_CLUSTER, "group", "columns")
TIMERS_OPTIONS: Final = (*_STORES, "columns")


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Parsed options of a read of ``stores`` or of the cluster ``namesrv``; None of columns or groups is all."""

    columns: tuple[str, ...] | None
    stores: SourceOptions | None
    namesrv: str | None
    groups: frozenset[str] | None
    query: Query
    access: Mapping[str, str] = field(repr=False)

    def wants_group(self, group: str) -> bool:
        return self.groups is None or group in self.groups


def metadata_options(source: str, options: Mapping[str, str], known_names: tuple[str, ...]) -> MetadataOptions:
    """Parse the options of a source. Raises OptionError."""
    parser = OptionParser(source, options, known_names)
    namesrv = parser.get("namesrv", values.text)
    places = sorted(parser.names() & set(_STORES))
    if namesrv is not None and places:
        raise OptionError(f"options namesrv and {places[0]} exclude each other")
    if namesrv is None and not places and "namesrv" in known_names:
        raise OptionError(f"{source} needs the root of a store, given to load(), or the option namesrv")
    if parser.names() >= set(_TOPICS):
        raise OptionError("options subscribe and subscribePattern exclude each other")
    groups, topics = parser.get("group", values.names), parser.get("subscribe", values.names)
    stores = None if namesrv is not None else replace(common_options(parser), names_brokers=True)
    return MetadataOptions(
        columns=parser.get("columns", values.names),
        stores=stores,
        namesrv=namesrv,
        groups=None if groups is None else frozenset(groups),
        query=Query(
            topics=None if topics is None else frozenset(topics),
            topic_pattern=parser.get("subscribePattern", values.pattern),
        ),
        access=access_settings(parser),
    )
