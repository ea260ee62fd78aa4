"""A Spark session with Delta configured and the project's sources and functions registered."""

import atexit
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rmq_formats.errors import ClusterError, OptionError
from rmq_formats.spark.sources import register_all
from rmq_formats.storage.store_files import LOG_PATHS_VARIABLE

# pyspark takes a second to load: functions import it, as commands without Spark use the options of this package.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOT_NEEDED: Final = (
    "io.delta:delta-kernel-api",
    "io.delta:delta-kernel-defaults",
    "io.delta:delta-kernel-unitycatalog",
    "io.unitycatalog:unitycatalog-client",
    "io.unitycatalog:unitycatalog-hadoop",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
)

CLASS_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
"""Archive of the classes of Spark and Delta, which a JVM maps into memory; ``make spark-classes`` writes the file."""
_NO_DELTA: Final = (
    "Spark did not start; what it said is above. If it cannot fetch {package} and its delta-storage from Maven "
    "Central, put the two jars into {jars}"
)
_CONNECT_PORT: Final = 15002  # Spark's default
_CONNECT_TIMEOUT_S: Final = 30.0

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_ALWAYS: Final = {
    # A store's times are UTC; dates must not depend on the machine.
    "spark.sql.session.timeZone": "UTC",
    # Workers are forks of a Python process that has loaded the kernels, see ``daemon``.
    "spark.python.daemon.module": "rmq_formats.spark.daemon",
    # Spark then plans each query with a condition anew, which sees new messages. No source accepts filters.
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    # Delta keeps a table's state in this many partitions; its default of 50 suits a cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists a table's files in so many tasks, even for few files; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.showConsoleProgress": "false",
    # Over TCP a task and its Python worker take some 20 ms longer, whatever they do (docs/performance.md).
    "spark.python.unix.domain.socket.enabled": "true",
}
# The JVM spends its time on single rows of Arrow vectors: a throughput collector, and Arrow without its second check of
# each access, save a quarter of that (docs/performance.md).
_JAVA_OPTIONS: Final = (
    "-XX:+UseParallelGC",
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)


def session(
    app_name: str = "rmq", *, master: str | None = None, remote: str | None = None, delta: bool = True, **conf: str
) -> "SparkSession":
    """Return the running session, or a new one, with the ``rmq_*`` sources and functions registered.

    Under ``spark-submit``, the master and the packages of ``spark-submit`` hold; otherwise the session is local, on all
    processors. With ``remote``, or ``SPARK_REMOTE`` in the environment, it is a session of Spark Connect with the
    server's master, packages and Delta; the server must have this project installed.

    Args:
        app_name: shown in Spark's own pages.
        master: Spark's master URL; None is that of ``spark-submit``, else ``local[*]``.
        remote: URL of a Spark Connect server, as ``sc://127.0.0.1:15002``.
        delta: with Delta Lake, which is fetched from Maven Central the first time.
        conf: further settings, ``spark_sql_shuffle_partitions="8"`` for ``spark.sql.shuffle.partitions``.

    Raises:
        OptionError: the libraries of Spark Connect are not installed; or Spark did not start, and was to fetch Delta.
        ClusterError: the server of Spark Connect does not respond, or lacks the sources.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote:
        return _connect(remote, {name.replace("_", "."): value for name, value in conf.items()})
    submitted = "SPARK_ENV_LOADED" in os.environ  # set by spark-submit for the script that it runs
    builder = SparkSession.builder.appName(app_name)
    settings = dict(_ALWAYS)
    if not submitted:
        # Workers must run in this very environment; others lack the sources.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= _LOCAL
        log4j = files("rmq_formats.spark") / "log4j2.properties"
        settings["spark.driver.extraJavaOptions"] = " ".join(
            [f"-Dlog4j2.configurationFile={log4j}", *_JAVA_OPTIONS, *class_archive_options()]
        )
        builder = builder.master(master or "local[*]")
    elif master:
        builder = builder.master(master)
    if delta:
        settings |= _DELTA
        if not submitted:
            settings |= _delta_jars()
    settings |= {name.replace("_", "."): value for name, value in conf.items()}
    for name, value in settings.items():
        builder = builder.config(name, value)
    handler = signal.getsignal(signal.SIGINT)
    try:
        spark = builder.getOrCreate()
        if handler is not None and handler not in (signal.default_int_handler, signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, handler)  # the program's handler, which Spark has replaced
    except PySparkRuntimeError as error:
        if error.getCondition() == "JAVA_GATEWAY_EXITED" and settings.get("spark.jars.packages") == delta_package():
            raise OptionError(_NO_DELTA.format(package=delta_package(), jars=_jars())) from error
        raise
    if LOG_PATHS_VARIABLE in os.environ:  # the processes that plan and read for the sources are the JVM's
        spark.sparkContext.environment[LOG_PATHS_VARIABLE] = os.environ[LOG_PATHS_VARIABLE]
    register_all(spark)
    atexit.unregister(_stop)  # set by an earlier call
    atexit.register(_stop, spark)
    if str(spark.sparkContext.master).startswith("local"):
        _start_workers(spark)
    return spark


def class_archive_options() -> list[str]:
    """Return the options by which a JVM starts with the class archive; none without an archive."""
    if not CLASS_ARCHIVE.exists():
        return []
    # With an archive of other jars, or for another Java, the JVM starts without the archive, and need not warn.
    return [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _connect(url: str, conf: dict[str, str]) -> "SparkSession":
    """Return a session at a Spark Connect server, with the settings that are modifiable in a session."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    server = urlsplit(url)
    label = f"Spark Connect at {server.scheme}://{server.netloc}"  # the rest of the URL may have a token
    if server.scheme == "sc":  # the client would try for ten minutes
        try:
            socket.create_connection((server.hostname, server.port or _CONNECT_PORT), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ClusterError(f"{label}: {error.strerror or error}") from error
    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
        for name, value in (_ALWAYS | conf).items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        register_all(spark)
    except ImportError as error:  # of grpc and others, in many lines
        raise OptionError("Spark Connect needs libraries of its own: pip install 'rmq-lake[connect]'") from error
    except PySparkException as error:
        raise ClusterError(f"{label}: {str(error).splitlines()[0]}") from error
    return spark


def delta_package(spark_version: str | None = None) -> str:
    """Return the Maven coordinates of the Delta that fits a version of Spark; None is the installed one."""
    import pyspark  # noqa: PLC0415

    from rmq_formats.spark.versions import DELTA_SPARKS, DELTA_VERSION  # noqa: PLC0415

    minor = ".".join((spark_version or pyspark.__version__).split(".")[:2])
    return f"io.delta:delta-spark_{minor if minor in DELTA_SPARKS else DELTA_SPARKS[-1]}_2.13:{DELTA_VERSION}"


def check_class(spark: "SparkSession", name: str, package: str) -> None:
    """Refuse a session whose JVM lacks a class; Py4J mistakes a missing class for a package.

    Raises:
        OptionError: naming the Maven coordinates of what has it, which ``spark-submit`` has to be given.
    """
    from py4j.java_gateway import JavaPackage  # noqa: PLC0415

    if isinstance(getattr(spark._jvm, name), JavaPackage):  # for Py4J, a missing class is a package
        raise OptionError(f"this session has no {package.split(':')[1]}: give spark-submit --packages {package}")


def _stop(spark: "SparkSession") -> None:
    """Stop a session at the program's exit: sockets would stay open, and workers would print errors."""
    with suppress(Exception):  # the program may have stopped the session already
        spark.stop()


def _start_workers(spark: "SparkSession") -> None:
    """Fork a Python worker for each processor in the background: the first query would wait for the workers."""
    count = spark.sparkContext.defaultParallelism

    def start() -> None:
        with suppress(Exception):  # the session may have been stopped meanwhile
            spark.sparkContext.parallelize(range(count), count).foreach(lambda _: None)

    threading.Thread(target=start, name="start-workers", daemon=True).start()


def _jars() -> Path:
    import pyspark  # noqa: PLC0415

    return Path(pyspark.__file__).parent / "jars"


def _delta_jars() -> dict[str, str]:
    """Return settings that fetch Delta's two jars; none if ``make install`` put the jars beside Spark's.

    To resolve the package takes seconds each time and prints a page to stderr. Spark has the package's other
    dependencies in its own versions.
    """
    if any(_jars().glob("delta-spark_*.jar")):
        return {}
    return {"spark.jars.packages": delta_package(), "spark.jars.excludes": ",".join(_NOT_NEEDED)}
