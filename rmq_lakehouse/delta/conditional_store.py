"""Log store for S3 that creates the file of a Delta version by a conditional put, if Hadoop's S3A supports that.

Delta 4.4 has no such log store. S3A supports conditional puts since Hadoop 3.4.2, by an option of the file. A log store
is a Java class: its source is beside this module, and Janino, Spark's own compiler of queries, compiles it in the
driver.

Source: ``org.apache.hadoop.fs.Options.CreateFileOptionKeys``, ``LogStoreProvider`` and ``DelegatingLogStore`` of Delta.
"""

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

CLASS: Final = "rmq_formats.ConditionalLogStore"
_CAPABILITY: Final = "fs.option.create.conditional.overwrite"
_SOURCE: Final = "ConditionalLogStore.java"


def puts_conditionally(spark: SparkSession, table: str) -> bool:
    """Return whether Hadoop's file system of a table can create a file only if it is absent, as one request.

    Hadoop before 3.4.2 does not, nor where ``fs.s3a.create.conditional.enabled`` is false.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path(table)  # type: ignore[union-attr] # there is a JVM
    file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return bool(file_system.hasPathCapability(path, _CAPABILITY))


def install(spark: SparkSession, scheme: str) -> bool:
    """Make Delta use the log store for a scheme, in all sessions of this driver; return False if that fails."""
    jvm: Any = spark._jvm
    try:
        _define(jvm)
    except Py4JError:  # no compiler, or class loaders that take no more
        return False
    jvm.org.apache.spark.SparkEnv.get().conf().set(f"spark.delta.logStore.{scheme}.impl", CLASS)
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # logs that are open keep the store that they have
    return True


def _define(jvm: Any) -> None:
    """Compile the class into the loader of Spark's jars, once. Raises Py4JError."""
    loader = _loader(jvm)
    find = jvm.java.lang.Class.forName
    try:
        find(CLASS, True, loader)
        return
    except Py4JError:
        pass
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE, jvm.java.io.StringReader((files(__package__) / _SOURCE).read_text("utf-8")))
    with tempfile.TemporaryDirectory() as directory:
        for name, code in compiler.getBytecodes().items():
            path = Path(directory, *name.split(".")).with_suffix(".class")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(code)
        loader.addURL(jvm.java.io.File(directory).toURI().toURL())
        find(CLASS, True, loader)


def _loader(jvm: Any) -> Any:
    """Return the class loader that all sessions share, which has the jars that Spark was given."""
    shared_loader, loader = None, jvm.java.lang.Thread.currentThread().getContextClassLoader()
    while loader is not None:
        if str(loader.getClass().getName()).startswith("org.apache.spark.util."):
            shared_loader = loader
        loader = loader.getParent()
    if shared_loader is None:
        raise Py4JError("this driver was not started by Spark")
    return shared_loader
