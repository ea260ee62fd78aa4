"""Every reading job works on a store in an object store as on a local one."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import open_storage, split_query
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.spark.runner import SparkRunner
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.scale.conftest import AWS, Bucket
from tests.support.processes import warm_processes
from tests.support.stores.rebuilt_stores import Splits, built, golden_options

OnS3 = Callable[[str], str]
Golden = Callable[[str], Path]


@pytest.mark.parametrize(
    ("uri", "without", "query"),
    [
        ("s3://b/store", "s3://b/store", ""),
        ("s3://b/store?scheme=http", "s3://b/store", "?scheme=http"),
        ("s3://b/store/?scheme=http", "s3://b/store", "?scheme=http"),
        ("s3://b/store?scheme=http/commitlog/0", "s3://b/store/commitlog/0", "?scheme=http"),
        ("s3://b/s?endpoint_override=http://h:1/commitlog/0", "s3://b/s/commitlog/0", "?endpoint_override=http://h:1"),
        ("s3://b/s?endpoint_override=http%3A%2F%2Fh/0", "s3://b/s/0", "?endpoint_override=http%3A%2F%2Fh"),
    ],
)
def test_names_may_be_joined_behind_a_query(uri: str, without: str, query: str) -> None:
    assert split_query(uri) == (without, query)


@pytest.mark.long
@pytest.mark.parametrize("query", ["endpoint_override={0}&scheme=http", "endpoint_override=http://{0}", ""])
def test_a_store_is_found_by_query_or_environment(
    bucket: Bucket, golden_on_s3: OnS3, golden: Golden, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    golden_on_s3("exotic")
    if not query:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{bucket.server}")
    for slash in ("", "/"):
        store = open_store(f"s3://{bucket.name}/stores/exotic{slash}?{query.format(bucket.server)}".rstrip("?"))
        for name in ("commitlog", "consumequeue", "consumequeue/%RETRY%exotic", ""):
            here = sorted((golden("exotic") / "store" / name).glob("*"))
            assert [entry.name for entry in store.storage.entries(f"{store.root}/{name}".rstrip("/"))] == [
                p.name for p in here
            ]
        again, path = open_storage(f"{store.root}/commitlog/{0:020d}")
        assert again.read_bytes(path) == (golden("exotic") / "store/commitlog" / f"{0:020d}").read_bytes()


@pytest.mark.long
def test_a_server_that_does_not_answer_is_told_in_a_line() -> None:
    store = open_store("s3://b/store?endpoint_override=127.0.0.1:1&scheme=http")
    with pytest.raises(StoreError, match="cannot be looked up"):
        store.storage.exists(store.root)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
def test_rebuild_into_a_local_directory(golden_on_s3: OnS3, golden: Golden, tmp_path: Path, name: str) -> None:
    options = golden_options(GOLDEN_SETTINGS[name])
    report = rebuild_store(golden_on_s3(name), str(tmp_path), options, Splits(3, ProcessRunner(2)))
    assert report.finding_counts == {}
    assert built(tmp_path) == built(golden(name) / "expected")


@pytest.mark.long
def test_verify_finds_the_same_as_on_a_local_disk(golden_on_s3: OnS3, golden: Golden) -> None:
    store = golden("crash") / "store"
    uri = golden_on_s3("crash")
    local = verify_store(str(store), VerifyOptions(), ProcessRunner(2))
    remote = verify_store(uri, VerifyOptions(), ProcessRunner(2))
    assert remote.counts == local.counts != {}
    assert (remote.messages, remote.units, remote.index_entries) == (local.messages, local.units, local.index_entries)


@pytest.mark.long
def test_the_command_line_reads_there_and_shows_no_secret(golden_on_s3: OnS3, bucket: Bucket, tmp_path: Path) -> None:
    uri = golden_on_s3("crash").replace(f":{AWS['AWS_SECRET_ACCESS_KEY']}@", ":HIDDEN@")
    bucket.files.delete_file(f"{bucket.name}/stores/crash/checkpoint")
    with bucket.files.open_output_stream(f"{bucket.name}/stores/crash/commitlog/stray") as stray:
        stray.write(b"1")
    html, out = tmp_path / "report.html", tmp_path / "out"
    said = []
    for arguments in (
        ("verify", uri, "--workers", "2", "--json"), ("verify", uri, "--workers", "2", "--report", html),
        ("rebuild", uri, "--out", out, "--json"), ("rebuild", uri, "--consumequeue-file-bytes", "7"),
        ("inspect", uri), ("dump", uri, "--limit", "1"), ("verify", f"{uri}none"), ("query", uri, "--topic", "none"),
    ):  # fmt: skip
        command = [str(Path(sys.executable).parent / "rmq"), *map(str, arguments)]
        done = warm_processes.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
        assert "Traceback" not in done.stderr
        said += [done.stdout, done.stderr]
    assert json.loads(said[0].splitlines()[-1])["messages"] > 0
    assert "tests:***@" in said[0]
    assert "HIDDEN" not in "".join([*said, html.read_text()])


@pytest.mark.long
@pytest.mark.spark
def test_rebuild_and_verify_on_spark(golden_on_s3: OnS3, golden: Golden, tmp_path: Path, spark: SparkSession) -> None:
    uri, options = golden_on_s3("mixed"), golden_options(GOLDEN_SETTINGS["mixed"])
    rebuild_store(uri, str(tmp_path), options, SparkRunner(spark))
    assert built(tmp_path) == built(golden("mixed") / "expected")
    local = verify_store(str(golden("mixed") / "store"), VerifyOptions(), ProcessRunner(1))
    remote = verify_store(uri, VerifyOptions(), SparkRunner(spark))
    assert (remote.counts, remote.messages) == (local.counts, local.messages)


@pytest.mark.long
@pytest.mark.spark
def test_the_sources_give_the_same_rows(golden_on_s3: OnS3, golden: Golden, spark: SparkSession) -> None:
    uri, local = golden_on_s3("mixed"), str(golden("mixed") / "store")
    for source in ("rmq_commitlog", "rmq_consumequeue", "rmq_index"):
        here, there = (
            sorted(str(row) for row in spark.read.format(source).load(place).collect()) for place in (local, uri)
        )
        assert there == here != []


@pytest.mark.long
@pytest.mark.spark
def test_export_lands_each_message_once(
    golden_on_s3: OnS3, golden: Golden, tmp_path: Path, spark: SparkSession
) -> None:
    arguments = ["--store", golden_on_s3("mixed"), "--table", str(tmp_path / "table"), "--system-topics"]
    given = export_delta.parser().parse_args(arguments)
    report, code = export_delta.main(export_delta.check(given), spark)
    lines = (golden("mixed") / "expected" / "messages.jsonl").read_text().splitlines()
    expected: list[Any] = [json.loads(line)["physical_offset"] for line in lines]
    rows = spark.read.format("delta").load(str(tmp_path / "table")).select("physical_offset").collect()
    assert (code, report["messages"]) == (0, len(expected))
    assert sorted(row.physical_offset for row in rows) == expected
    again, _ = export_delta.main(export_delta.check(given), spark)
    assert again["messages"] == 0


@pytest.mark.long
@pytest.mark.parametrize("log", ["tiered", "joined"])
def test_tiered_storage_is_read_and_verified(golden_on_s3: OnS3, golden: Golden, log: str) -> None:
    local = golden("tiered") / "store"
    uri = golden_on_s3("tiered")
    expected = list(Store(local, tier=local / "tiered", log=log))
    assert list(Store(uri, tier=f"{uri}/tiered", log=log)) == expected
    assert list(Store(local, tier=f"{uri}/tiered", log=log)) == expected  # a hot store here, its tier there
    report = verify_store(str(local), VerifyOptions(tier=f"{uri}/tiered"), ProcessRunner(1))
    assert report.is_clean, report.counts
