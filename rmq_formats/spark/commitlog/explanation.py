"""Explains the access paths of a DataFrame's sources, for which Spark's ``explain()`` has no place."""

from typing import Any

from pyspark.sql import DataFrame

from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import batch_only, commitlog_options


def explain(frame: DataFrame) -> str:
    """Describe each ``rmq_commitlog`` that a DataFrame reads, a line a store: path, access path, reason, tasks.

    It plans the read again, and reads no record. Filters that Spark pushes down are not included.
    """
    lines = []
    for name, options in _sources(frame):
        if name == "rmq_commitlog":
            given = batch_only(commitlog_options(options))
            lines += [f"{name} {found.store}: {found.plan or found.missing}" for found in plans_of(given)]
        elif name.startswith("rmq_"):
            lines.append(f"{name} {options.get('path') or options.get('paths', '')}: read as it stands")
    return "\n".join(lines)


def _sources(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Return format and options of the sources in a DataFrame's plan."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # a DataFrame has no plan in Python
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            options = leaf.options().asCaseSensitiveMap()
            found.append((str(leaf.table().name()), {str(key): str(options[key]) for key in options}))
    return found
