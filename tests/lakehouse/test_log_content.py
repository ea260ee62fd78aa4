"""What an export relies on: a log that is forced, and the very log that was exported before."""

import errno
import json
import os
import shutil

import pytest
from pyspark.errors import StreamingQueryException

from rmq_formats.errors import StoreError
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

pytestmark = pytest.mark.spark

FIRST_MS = 1_700_000_000_000
ONCE = ("--mode", "available-now")


@pytest.mark.long
@pytest.mark.parametrize("mode", [(), ONCE], ids=["batch", "available-now"])
def test_the_log_is_forced_before_it_is_read(
    exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = write(exporter.store, plain(30), FIRST_MS)
    disk = os.fsync

    def failing(descriptor: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        disk(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises((StoreError, StreamingQueryException), match="cannot be forced to the disk: Input/output error"):
        exporter.run(*mode)
    monkeypatch.setattr(os, "fsync", disk)
    assert exporter.run(*mode)[0]["messages"] == 30
    assert exporter.offsets() == placed


@pytest.mark.long
def test_a_log_that_was_cut_and_grew_anew_is_refused(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(20), FIRST_MS)
    end = exporter.run()[0]["ending_physical_offset"]
    write(exporter.store, plain(30), FIRST_MS + 1)  # records of the same sizes
    for arguments in ((), ONCE):
        with pytest.raises(StoreError, match=f"bytes 0 to {end} of the CommitLog are not those that .*table was"):
            exporter.run(*arguments)
    assert exporter.offsets() == placed
    placed = write(exporter.store, plain(33), FIRST_MS + 1)
    assert exporter.run("--from-offset", str(end))[0]["messages"] == 13
    assert exporter.offsets() == placed
    assert exporter.run()[0]["messages"] == 0


@pytest.mark.long
def test_another_log_is_refused_by_a_table_of_keys(exporter: Exporter) -> None:
    topic = {"topic": "Even", "format": "json", "schema": "n INT", "key": ["n"], "table": "numbers"}
    spec = exporter.work / "spec.json"
    spec.write_text(json.dumps({"topics": [topic]}))
    bodies = [("Even", b'{"n": %d}' % (number % 3)) for number in range(9)]
    write(exporter.store, bodies, FIRST_MS)
    exporter.run("--typed", str(spec), table=False)
    write(exporter.store, bodies * 2, FIRST_MS + 1)
    with pytest.raises(StoreError, match=r"of the CommitLog are not those that .*numbers was exported from"):
        exporter.run("--typed", str(spec), table=False)


@pytest.mark.long
def test_a_table_that_went_on_with_a_cut_log_stands_at_its_end(exporter: Exporter) -> None:
    write(exporter.store, plain(20), FIRST_MS)
    exporter.run()
    placed = write(exporter.store, plain(12), FIRST_MS)
    with pytest.raises(StoreError, match="the CommitLog ends at"):
        exporter.run()
    end = placed[-1] + 1
    with pytest.raises(StoreError, match=r"the table has rows after offset \d+, the end of the CommitLog"):
        exporter.run("--from-offset", "0")
    exporter.spark.sql(f"DELETE FROM delta.`{exporter.table}` WHERE physical_offset >= {end}")
    assert exporter.run("--from-offset", "0")[0]["messages"] == 0
    assert exporter.run()[0]["messages"] == 0
    placed = write(exporter.store, [*plain(12), *plain(20)], FIRST_MS)  # beyond where the old one ended
    assert exporter.run()[0]["messages"] == 20
    assert exporter.offsets() == placed


@pytest.mark.long
def test_a_table_of_keys_that_went_on_with_a_cut_log_stands_at_its_end(exporter: Exporter) -> None:
    topic = {"topic": "Even", "format": "json", "schema": "n INT", "key": ["n"], "table": "numbers"}
    spec = exporter.work / "spec.json"
    spec.write_text(json.dumps({"topics": [topic]}))
    bodies = [("Even", b'{"n": %d}' % number) for number in range(30)]
    write(exporter.store, bodies[:9], FIRST_MS)
    exporter.run("--typed", str(spec), table=False)
    placed = write(exporter.store, bodies[:4], FIRST_MS)
    exporter.spark.sql(f"DELETE FROM delta.`{exporter.work}/numbers` WHERE physical_offset > {placed[-1]}")
    exporter.run("--typed", str(spec), "--from-offset", "0", table=False)
    placed = write(exporter.store, [*bodies[:4], *bodies[10:]], FIRST_MS)
    assert exporter.run("--typed", str(spec), table=False)[0]["messages"] == 20
    assert [row.physical_offset for row in exporter.rows("numbers")] == placed


@pytest.mark.long
def test_a_log_that_is_not_the_one_that_another_selection_was_exported_from_is_refused(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(20), FIRST_MS)
    exporter.run("--topics", "Even", "--ending-physical-offset", str(placed[10]))
    exporter.run("--topics", "Odd")
    there = exporter.offsets()
    for bodies, said in (([*plain(12), *plain(20)], "are not those that .*table was exported"), (plain(12), "ends at")):
        shutil.rmtree(exporter.store)
        write(exporter.store, bodies, FIRST_MS)
        for arguments in (("--topics", "Even"), ()):
            with pytest.raises(StoreError, match=said):
                exporter.run(*arguments)
    assert exporter.offsets() == there
