"""Says how a DataFrame's records are found: Spark's own ``explain()`` has no place for a Python source to."""

from typing import Any

from pyspark.sql import DataFrame

from rmq_formats.spark.commitlog import plan_of
from rmq_formats.spark.options import batch_only, commitlog_options


def explain(frame: DataFrame) -> str:
    """One line for each ``rmq_commitlog`` that a DataFrame reads: path, access path, reason, tasks.

    It plans anew, and reads no record. Filters that Spark pushes are not in it.
    """
    lines = []
    for name, options in _sources(frame):
        if name == "rmq_commitlog":
            given = batch_only(commitlog_options(options))
            lines.append(f"{name} {given.path}: {plan_of(given)}")
        elif name.startswith("rmq_"):
            lines.append(f"{name} {options.get('path', '')}: read as it stands")
    return "\n".join(lines)


def _sources(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Format and options of the sources that a DataFrame's plan begins with."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # Python has no plan
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            options = leaf.options().asCaseSensitiveMap()
            found.append((str(leaf.table().name()), {str(key): str(options[key]) for key in options}))
    return found
