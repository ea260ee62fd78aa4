"""Lag as mqadmin tells it of a real Java broker, of the cluster and of the store that the broker began with."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from rmq_formats.codecs.fastjson import loads
from tests.cli.admin.conftest import Cluster
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, brokers, free_port, java, settings, wait_for
from tests.namesrv.test_command import running
from tests.read.test_lag import commit
from tests.spark.conftest import Load

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.xdist_group("spark")]

BROKER = "golden-a"
GROUPS = ("golden_cg_ok", "golden_cg", "late")


@dataclass(frozen=True)
class Started:
    """A Java broker on a copy of a store.

    Attributes:
        store: another copy, at rest.
        namesrv: the name server's address.
        broker: the broker's.
    """

    store: Path
    namesrv: str
    broker: str


@pytest.fixture(scope="module")
def started(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    peer.build()
    directory = tmp_path_factory.mktemp("lag")
    at_rest = directory / "at-rest"
    shutil.copytree(golden("mixed") / "store", at_rest)
    commit(at_rest, "Orders@golden_cg_ok", {0: 182, 1: 100, 3: 0})  # none in queue 2
    commit(at_rest, "Orders@late", {0: 181})
    topics = at_rest / "config" / "topics.json"
    table: Any = loads(topics.read_text())  # mqadmin finds a group's brokers by its retry topic
    table["topicConfigTable"]["%RETRY%late"] = {"topicName": "%RETRY%late", "readQueueNums": 1, "writeQueueNums": 1}
    topics.write_text(json.dumps(table))
    shutil.copytree(at_rest, directory / "store")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        address = stack.enter_context(running("-c", settings(directory / "namesrv")))[1]
        port, conf = free_port(), directory / "broker.conf"
        conf.write_text(
            f"{SMALL_FILES}brokerName={BROKER}\nbrokerClusterName=GoldenCluster\nnamesrvAddr={address}\n"
            f"listenPort={port}\nhaListenPort={free_port()}\nfileReservedTime=87600\n"
        )
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf)))
        wait_for(lambda: brokers(address) == {BROKER})
        yield Started(at_rest, address, f"127.0.0.1:{port}")


def live(spark: SparkSession, started: Started, source: str = "rmq_offsets", **options: str) -> DataFrame:
    return spark.read.format(source).options(namesrv=started.namesrv, **options).load()


def by_queue(rows: list[Row]) -> dict[tuple[str, str, int], Row]:
    return {(row.group, row.topic, row.queue_id): row for row in rows}


def mqadmins(started: Started, group: str) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """Max offset, committed offset and difference, by queue, as mqadmin prints them."""
    printed = peer.command("consumerProgress", "-n", started.namesrv, "-g", group)
    rows = [line.split() for line in printed.splitlines() if f" {BROKER} " in line]
    assert rows, printed[-2000:]
    return {(group, row[0], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


@pytest.mark.long
def test_mqadmin_rmq_admin_and_both_tables_agree(spark: SparkSession, load: Load, started: Started) -> None:
    of_cluster, of_store = (
        by_queue(live(spark, started).collect()),
        by_queue(load(started.store, "rmq_offsets").collect()),
    )
    assert of_cluster == of_store
    for group in GROUPS:
        own = {queue: row for queue, row in of_cluster.items() if queue[0] == group}
        told = {queue: (row.max_offset, row.committed_offset or 0, row.lag_messages) for queue, row in own.items()}
        assert told == mqadmins(started, group)
        rows = Cluster(started.namesrv, started.broker).rows("consumerProgress", "-g", group)
        assert told == {
            (group, row["topic"], row["queue_id"]): (row["broker_offset"], row["consumer_offset"], row["diff"])
            for row in rows
        }
    late = [row for queue, row in of_cluster.items() if queue[:2] == ("late", "Orders")]
    assert sorted((row.queue_id, row.committed_offset, row.lag_messages) for row in late) == [
        (0, 181, 1), (1, None, 182), (2, None, 182), (3, None, 182),
    ]  # fmt: skip
    assert all(row.lag_seconds > 0 for row in late if row.queue_id)
    some = live(spark, started, group="late", subscribe="Orders", columns="queue_id,lag_messages").collect()
    assert sorted(map(tuple, some)) == [(0, 1), (1, 182), (2, 182), (3, 182)]


def test_topics_and_groups_of_a_broker_are_those_of_its_files(
    spark: SparkSession, load: Load, started: Started
) -> None:
    for source, name in (("rmq_topics", "topic"), ("rmq_groups", "group")):
        of_cluster, of_store = (
            {row[name]: row for row in frame.collect()}
            for frame in (live(spark, started, source), load(started.store, source))
        )
        assert of_store
        assert {one: row for one, row in of_cluster.items() if one in of_store} == of_store
