"""Delta's checksum files: a source of transaction versions where they are of the very commit, and of nothing else."""

import json
from pathlib import Path

import pytest

from rmq_lakehouse.delta.files import parse_checksum, parse_commit
from rmq_lakehouse.delta.table import DeltaTableLog
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

COMMIT = [b'{"commitInfo":{"operation":"WRITE","txnId":"one"}}', b'{"txn":{"appId":"a","version":9}}']
CHECKSUM = {"txnId": "one", "setTransactions": [{"appId": "a", "version": 9}, {"appId": "b", "version": 3}]}


def transactions(checksum: bytes, commit: list[bytes]) -> dict[str, int] | None:
    return parse_checksum(checksum, parse_commit(commit, lambda _: None).transaction_id)


def test_the_versions_of_a_commit_are_those_of_its_checksum_file() -> None:
    assert transactions(json.dumps(CHECKSUM).encode(), COMMIT) == {"a": 9, "b": 3}
    assert transactions(json.dumps(CHECKSUM | {"setTransactions": []}).encode(), COMMIT) == {}


@pytest.mark.parametrize(
    ("checksum", "commit"),
    [
        (CHECKSUM | {"txnId": "another"}, COMMIT),
        (CHECKSUM | {"txnId": None}, COMMIT),
        (CHECKSUM, [b'{"commitInfo":{"operation":"WRITE"}}']),
        (CHECKSUM, COMMIT[1:]),
        (CHECKSUM, []),
        ({"txnId": "one"}, COMMIT),
        (CHECKSUM | {"setTransactions": None}, COMMIT),
        (CHECKSUM | {"setTransactions": [{"appId": "a"}]}, COMMIT),
        (CHECKSUM | {"setTransactions": 7}, COMMIT),
        ([], COMMIT),
    ],
)
def test_a_file_of_another_commit_or_without_versions_counts_for_nothing(checksum: object, commit: list[bytes]) -> None:
    assert transactions(json.dumps(checksum).encode(), commit) is None


def test_a_file_that_is_cut_anywhere_counts_for_nothing() -> None:
    whole = json.dumps(CHECKSUM).encode()
    assert {transactions(whole[:end], COMMIT) is None for end in range(len(whole))} == {True}


def checksums(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.crc"))


@pytest.mark.spark
@pytest.mark.long
def test_a_table_s_versions_are_delta_s_and_a_file_of_a_lost_commit_misleads_nobody(exporter: Exporter) -> None:
    write(exporter.store, plain(6))
    exporter.run()
    log = DeltaTableLog(exporter.spark, str(exporter.table))
    snapshot = log.snapshot()
    delta = snapshot.delta_snapshot.transactions()
    versions = {app_id: int(delta.get(app_id).get()) for app_id in snapshot.transactions}
    assert delta.size() == len(versions) > 1
    commit, checksum = log.read_commit(snapshot.version), log.read_checksum(snapshot.version)
    assert commit is not None
    assert checksum is not None
    assert parse_checksum(checksum, commit.transaction_id) == versions
    newest = checksums(exporter.table)[-1]
    content = json.loads(newest.read_text())
    # As if the commit that wrote the file had been lost, and this one had taken its number.
    ahead = [action | {"version": action["version"] + 10_000} for action in content["setTransactions"]]
    newest.write_text(json.dumps(content | {"txnId": "of the lost commit", "setTransactions": ahead}))
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    assert parse_checksum(newest.read_bytes(), commit.transaction_id) is None
    write(exporter.store, plain(9))
    exporter.run()
    for path in checksums(exporter.table):
        path.unlink()
    write(exporter.store, plain(11))
    exporter.run()
    rows = exporter.spark.read.format("delta").load(str(exporter.table))
    assert rows.count() == rows.select("physical_offset").distinct().count() == 11
