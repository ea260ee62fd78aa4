"""Reads of bodies that nobody selected."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.spark.commitlog import batch
from rmq_formats.spark.commitlog.batch import CommitLogReader
from rmq_formats.spark.options import schemas
from rmq_formats.spark.options.read import commitlog_options


@pytest.mark.parametrize(
    ("columns", "notable_bytes", "is_logged"),
    [(None, 1, True), (None, 1 << 40, False), ("topic,body", 1, False), ("topic", 1, False)],
)
def test_a_large_read_of_bodies_that_nobody_selected_is_logged_once(
    golden: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    columns: str | None,
    notable_bytes: int,
    is_logged: bool,
) -> None:
    monkeypatch.setattr(batch, "_NOTABLE_BYTES", notable_bytes)
    source_options = {"path": str(golden("mixed") / "store")} | ({} if columns is None else {"columns": columns})
    options = commitlog_options(source_options)
    with caplog.at_level(logging.WARNING):
        assert CommitLogReader(options, schemas.of_read(schemas.COMMITLOG, options)).partitions()
    logged = [record for record in caplog.records if "bodies are read" in record.getMessage()]
    assert len(logged) == is_logged
