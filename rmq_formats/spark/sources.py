"""The Spark data sources, and their registration with a session.

Packages above this one offer sources, column functions and kernels by entry points in ``pyproject.toml``, which an
installation records, an editable installation too.
"""

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SOURCES: Final = "rmq.spark_sources"  # classes of data sources
FUNCTIONS: Final = "rmq.spark_functions"  # functions that register column functions in a session
KERNELS: Final = "rmq.spark_kernels"  # modules that load kernels


def load_entry_points(group: str) -> list[Any]:
    """Load the objects of a group.

    Raises:
        OptionError: the group is empty, as the project is not installed in this environment.
    """
    objects = [entry.load() for entry in entry_points(group=group)]
    if not objects:
        raise OptionError(
            f"{group}: this environment has no such entry points. Install the project: pip install rmq-lake"
        )
    return objects


def data_sources() -> "tuple[type[DataSource], ...]":
    """Return the data sources; Spark registers each by its ``name()``. Raises OptionError."""
    return tuple(load_entry_points(SOURCES))


def register_all(spark: "SparkSession") -> None:
    """Register the sources, and the column functions of ``spark_udfs``, in a session.

    Raises:
        OptionError: the project is not installed in this environment.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    for source in data_sources():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:  # Spark 4.0 registers sources that it discovers
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    for register in load_entry_points(FUNCTIONS):
        register(spark)
