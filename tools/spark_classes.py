"""Archives the classes of Spark and Delta for the JVM, so that a session starts in half the processor time.

``make spark-classes`` runs this tool once an installation. A JVM then maps one file into its memory, and need not read,
check and link some 13,000 classes from 300 jars. If Java or the jars are others, it starts as without the file.

Spark starts its Python workers with modules from ``pyspark.zip``, which each process compiles anew: 0.7 s. A directory
of that name has the same modules, compiled.
"""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pyspark

from jobs import export_delta
from rmq_formats.spark import session
from rmq_formats.spark.session import CLASS_ARCHIVE

_MERGE: Final = "MERGE INTO delta.`{0}` t USING delta.`{0}` s ON t.physical_offset = s.physical_offset {1}"


def _use_spark(directory: Path) -> None:
    """Use what most tests use, which loads its classes; return when the JVM has written the archive."""
    store, table = directory / "store", directory / "table"
    rmq = Path(sys.executable).parent / "rmq"
    subprocess.run([rmq, "generate", store, "--messages", "100", "--body-bytes", "10"], check=True, capture_output=True)
    spark = session("classes", master="local[2]", spark_sql_warehouse_dir=str(directory / "warehouse"))
    spark.sparkContext.setLogLevel("OFF")
    for mode in ("batch", "available-now"):
        words = ["--store", str(store), "--table", str(table), "--mode", mode]
        export_delta.main(export_delta.check(export_delta.parser().parse_args(words)), spark)
    spark.sql(_MERGE.format(table, "WHEN MATCHED THEN UPDATE SET *"))
    spark.read.format("delta").load(str(table)).groupBy("topic").count().orderBy("topic").collect()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def unpack_modules() -> None:
    """Put a directory in the place of ``pyspark.zip``, unless there is one."""
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    if archive.is_file():
        new = archive.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        with zipfile.ZipFile(archive) as modules:
            modules.extractall(new)
        compileall.compile_dir(new, stripdir=str(new), prependdir=str(archive), quiet=1)
        archive.unlink()
        new.rename(archive)


def main() -> None:
    """Write the archive; one that is not whole would end each JVM that maps it, so it gets its name at the end."""
    unpack_modules()
    CLASS_ARCHIVE.unlink(missing_ok=True)  # a JVM cannot write one while it uses another
    new = CLASS_ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={new} -Xlog:cds=off"
    with tempfile.TemporaryDirectory() as directory:
        _use_spark(Path(directory))
    new.rename(CLASS_ARCHIVE)


if __name__ == "__main__":
    main()
