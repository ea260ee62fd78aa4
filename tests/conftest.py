"""Fixtures that all tests share: the golden stores, unpacked once a session, and a Spark session."""

import os
import shutil
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import settings

from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS
from rmq_formats.spark.session import class_archive_options
from rmq_offline.tasks import origin
from tests.interop import peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVES = Path(__file__).parent / "golden"
GATE_TIMEOUT_S = 60.0
MOST_TRIED_AGAIN = 3
MIXED_DELAY_LEVELS = " ".join(f"{second}s" for second in range(1, 19))
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def pytest_configure() -> None:
    """What holds for the programs that tests start."""
    # They take SIGINT as a terminal's programs do; one in the background ignores it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Of the processors' time in a test's short-lived JVM the optimizing compiler takes most, and to no use.
    # It needs 80 MB for what it compiles, and without the other compiler has but 48: it compiled again and again.
    options = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", *class_archive_options()]
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(options))
    # An example has no deadline: a busy machine is no fault of what is tested.
    settings.register_profile("project", deadline=None)
    settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have a key of notes that is not the user's; made here, so that no counted run makes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        assert origin.own_key()
        yield


@dataclass(frozen=True, slots=True)
class GoldenSettings:
    """How a golden store was written; see tests/golden/README.md."""

    commitlog_file_bytes: int
    consumequeue_file_bytes: int
    index_slots: int
    index_entries: int
    delay_levels: str
    append_crc_property: bool = False
    ext_file_bytes: int | None = None
    tags_from: int = NO_TAGS
    batch_file_bytes: int = 920


_BROKER = GoldenSettings(1048576, 2000, 500, 2000, MIXED_DELAY_LEVELS)
GOLDEN_SETTINGS = {
    "mixed": _BROKER,
    "mixed_551": replace(_BROKER, tags_from=ALL_TAGS),
    "crash": _BROKER,
    "exotic": GoldenSettings(65536, 400, 50, 200, DEFAULT_DELAY_LEVELS),
    "exotic_crc": GoldenSettings(65536, 400, 50, 200, DEFAULT_DELAY_LEVELS, True, 65536),
}
# Stores of other layouts, see tests/golden/README.md; the log's files have 262144 bytes in all of them.
_LAYOUT_SETTINGS = GoldenSettings(262144, 2000, 500, 2000, MIXED_DELAY_LEVELS)
LAYOUT_STORES = dict.fromkeys(
    ("dledger", "dledger_crash", "dledger_mixed", "lmq", "bcq", "rocksdb", "rocksdb_crash", "rocksdb_lmq", "tiered",
     "compaction", "controller"), _LAYOUT_SETTINGS
)  # fmt: skip


def _unpack(name: str, directory: Path) -> Path:
    """Unpack one store; workers that do so at the same time do not see each other's half-done ones."""
    target = directory / name
    if not target.exists():
        staging = directory / f"{name}.{os.getpid()}"
        archive = ARCHIVES / f"{name}.tar.zst"
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            tar.extractall(staging, filter="data")
        try:
            (staging / name).rename(target)
        except OSError:  # another worker was faster
            if not target.is_dir():
                raise
        shutil.rmtree(staging, ignore_errors=True)
    return target


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a golden store by its name; it holds ``store`` and ``expected``. Do not write into it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # all workers of a run share it
    directory = base / "golden"
    directory.mkdir(exist_ok=True)
    return lambda name: _unpack(name, directory)


@pytest.fixture(scope="session")
def golden_dir(golden: Callable[[str], Path]) -> Path:
    """Directory with all golden stores unpacked."""
    for name in GOLDEN_SETTINGS:
        directory = golden(name).parent
    return directory


@pytest.fixture(scope="session", params=list(GOLDEN_SETTINGS))
def golden_name(request: pytest.FixtureRequest) -> str:
    """Each golden store's name in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def golden_settings() -> dict[str, GoldenSettings]:
    """How the golden stores were written, by name."""
    return GOLDEN_SETTINGS


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A local session of two processors. A process can have no more than one, whatever the settings."""
    from rmq_formats.spark import session  # a second, which most tests need not wait

    more = {
        "spark_sql_shuffle_partitions": "2",
        "spark_sql_warehouse_dir": str(tmp_path_factory.mktemp("warehouse")),
        # Code that is made for each query and compiled for a few rows costs more than it saves.
        "spark_sql_codegen_wholeStage": "false",
        "spark_sql_codegen_factoryMode": "NO_CODEGEN",
        "spark_python_authenticate_socketTimeout": "120s",  # workers may start on a busy machine
    }
    spark = session("tests", master="local[2]", **more)
    spark.sparkContext.setLogLevel("OFF")  # tests provoke errors, and read them
    yield spark
    spark.stop()


@pytest.fixture(params=peer.VERSIONS)
def each_release(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each release of the original that the project is tested with, which ``peer`` then runs."""
    with peer.running(request.param):
        yield str(request.param)


@pytest.fixture
def kernel_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set, it has the kernels of a store load: as if that took so long."""
    from rmq_core.store import store  # most tests have none

    event = threading.Event()
    load = store.load_kernels

    def load_later() -> None:
        assert event.wait(GATE_TIMEOUT_S)
        load()

    monkeypatch.setattr(store, "load_kernels", load_later)
    yield event
    event.set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no long test after the time that CI has for those, in s since 1970: CI would end the whole run."""
    is_long = any(item.get_closest_marker(name) for name in ("long", "torture"))
    if is_long and time.time() > float(os.environ.get("RMQ_TESTS_END", "inf")):
        pytest.skip("CI has no time left: make test-all runs this test")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two workers have a session; a test is tried again only where ``flaky(reruns=…, reason=…)`` says why."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            # Each session costs a JVM that has yet to load and compile; but a worker with all would be the last to end.
            if item.get_closest_marker("xdist_group") is None:
                room = "lakehouse" if item.path.parent.name == "lakehouse" else "spark"
                item.add_marker(pytest.mark.xdist_group(room))
        elif "bucket" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("s3"))  # one server
        mark = item.get_closest_marker("flaky")
        if mark is not None and not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: its mark flaky gives no reason")


def _tried_again(config: pytest.Config) -> "list[pytest.TestReport]":
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else list(reporter.stats.get("rerun", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which more than a few tests had to be tried again fails."""
    if len(_tried_again(session.config)) > MOST_TRIED_AGAIN:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell why tests were tried again: a reason that comes seldom is lost otherwise."""
    reports = _tried_again(terminalreporter.config)
    for report in reports:
        terminalreporter.write_sep("_", f"tried again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    if len(reports) > MOST_TRIED_AGAIN:
        terminalreporter.write_line(f"FAILED: {len(reports)} were tried again, of {MOST_TRIED_AGAIN} at most", red=True)
