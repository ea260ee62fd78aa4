"""Maintenance of exported Delta tables: deletes old messages, compacts small files, vacuums old files."""

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.delta.place import DeltaPlace
from rmq_formats.lakehouse.raw import Export

_SAFE_VACUUM_HOURS: Final = 168  # Delta's own bound: an export or reader that runs longer would lose its files


def check_maintenance(retention_days: int | None, vacuum_hours: int | None) -> None:
    """Refuse a retention or vacuum interval that would delete what is in use.

    Raises:
        OptionError: naming the option.
    """
    if retention_days is not None and retention_days < 1:
        raise OptionError(f"--retention {retention_days}: expected a number of days, 1 or more")
    if vacuum_hours is not None and vacuum_hours < _SAFE_VACUUM_HOURS:
        raise OptionError(
            f"--vacuum {vacuum_hours}: at least {_SAFE_VACUUM_HOURS} hours; younger files may be in use by a reader"
        )


def maintain(
    spark: SparkSession, export: Export, *, optimize: bool, retention_days: int | None, vacuum_hours: int | None
) -> None:
    """Delete, compact and vacuum the tables of an export.

    Args:
        spark: the session.
        export: export whose tables are maintained.
        optimize: compact files to the target size of ``files``, and cluster a table that has clustering columns.
        retention_days: delete the rows of messages that were stored longer ago; None keeps all.
        vacuum_hours: delete files that have been in no version for so long; None keeps them.
    """
    if not optimize and retention_days is None and vacuum_hours is None:
        return
    for path, stored in export.tables.items():
        table = DeltaPlace(spark, path).open()
        if retention_days is not None:
            table.delete(F.col(stored) < F.current_timestamp() - F.make_dt_interval(F.lit(retention_days)))
        if optimize:
            table.optimize().executeCompaction()
        if vacuum_hours is not None:
            table.vacuum(vacuum_hours)
