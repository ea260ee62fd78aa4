"""``docs/sql.md``: all views in one call, and each block of the page runs and is right."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.arrow.schema import CONSUMER_OFFSETS
from rmq_formats.pending_timers import pending_timers
from rmq_formats.spark import create_views
from rmq_formats.spark.tables.transactions import transactions
from rmq_formats.spark.views import VIEWS
from rmq_formats.store import Store
from rmq_lakehouse.broker_state.options import OFFSETS_OPTIONS
from rmq_lakehouse.live.options import ACCESS_OPTIONS
from tests.read.test_lag import commit, lag
from tests.spark.live.test_pages import first_cells
from tests.support.oracles.light_queues import light_places
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import write_commitlog

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SESSION = 'spark = session("sql")\n'  # the tests' own


@pytest.fixture(scope="module")
def store(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a store of the original, in which a group is behind."""
    copy = tmp_path_factory.mktemp("sql") / "store"
    shutil.copytree(golden("mixed") / "store", copy)
    commit(copy, "Orders@golden_cg_ok", {0: 182, 1: 100, 3: 0})
    return copy


@pytest.mark.long
def test_the_page_runs(spark: SparkSession, store: Path) -> None:
    answers = []
    for language, text in BLOCKS:
        here = text.replace("/data/store", str(store))
        if language == "python":
            assert SESSION in here
            exec(here.replace(SESSION, ""), {"spark": spark})
        else:
            assert language == "sql"
            answers.append(spark.sql(here).collect())
    sums, behind, nexts, states, topics, created, late, described = answers
    assert {row.topic: row.messages for row in sums}["Orders"] > 0
    assert [row.bytes for row in sums] == sorted((row.bytes for row in sums), reverse=True)
    rows = [row for row in lag(store) if row["lag_messages"]]
    assert [tuple(row) for row in behind] == [
        ("golden_cg_ok", "Orders", sum(row["lag_messages"] for row in rows), max(row["lag_seconds"] for row in rows))
    ]
    assert sorted(row.queue_offset for row in nexts) == [0, 100]
    assert {row.state: row.transactions for row in states} == {"committed": 8, "rolled_back": 4}
    assert topics[0].messages > 0
    assert created == []
    assert [tuple(row) for row in late] == [(0, 0), (1, 82), (2, 182), (3, 182)]
    assert all(row.comment for row in described)


def test_the_page_has_each_view_column_and_option() -> None:
    views, offsets = PAGE.split("## Consumer lag")
    assert first_cells(views) == set(VIEWS)
    columns, options = offsets.split("\n## ")[0].split("| option |")
    assert first_cells(columns) == set(CONSUMER_OFFSETS.names)
    assert first_cells(options) == set(OFFSETS_OPTIONS) - set(ACCESS_OPTIONS)


@pytest.mark.long
def test_views_are_of_each_table_and_see_what_comes_later(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(golden("mixed") / "store", copy)
    assert create_views(spark, str(copy), prefix="one_") == tuple(f"one_{name}" for name in VIEWS)
    counts = {name: spark.table(f"one_{name}").count() for name in VIEWS}
    assert counts["timers"] == pending_timers(str(copy)).num_rows
    assert counts["traces"] == 0
    assert all(counts[name] for name in VIEWS if name not in {"timers", "traces"})
    waits = "SELECT sum(lag_messages) FROM one_consumer_offsets WHERE group = 'golden_cg_ok'"
    before = spark.sql(waits).collect()[0][0]
    commit(copy, "Orders@golden_cg_ok", {0: 100})
    assert spark.sql(waits).collect()[0][0] == before + 82 + 3 * 182


@pytest.mark.parametrize("view", ["messages", "message_headers", "message_positions"])
def test_a_query_without_a_condition_sees_what_has_come_since(spark: SparkSession, tmp_path: Path, view: str) -> None:
    messages = [plain_message(queue_id=number % 2) for number in range(8)]
    query = f"SELECT queue_id, count(*) FROM grown_{view} GROUP BY ALL ORDER BY ALL"
    write_commitlog(tmp_path, messages[:6], 4096)
    create_views(spark, str(tmp_path), prefix="grown_")
    assert [tuple(row) for row in spark.sql(query).collect()] == [(0, 3), (1, 3)]
    write_commitlog(tmp_path, messages, 4096)
    assert [tuple(row) for row in spark.sql(query).collect()] == [(0, 4), (1, 4)]


@pytest.mark.long
def test_views_of_several_brokers_keep_them_apart(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    for letter in "ab":  # the same store twice: all its offsets are those of the other, too
        shutil.copytree(golden("mixed") / "store", tmp_path / letter / "store")
        topics = tmp_path / letter / "store" / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("golden-a", f"golden-{letter}"))
    create_views(spark, [str(tmp_path / letter / "store") for letter in "ab"], prefix="two_")

    def rows(query: str) -> list[Any]:
        return sorted(tuple(row) for row in spark.sql(query).collect())

    one = sorted(tuple(row)[:-2] for row in transactions(spark, str(tmp_path / "a" / "store")).collect())
    for letter in "ab":
        own = f"SELECT * EXCEPT (cluster, broker_name) FROM two_transactions WHERE broker_name = 'golden-{letter}'"
        assert rows(own) == one
    counted = "SELECT broker_name, count(*) FROM two_{} GROUP BY broker_name"
    for name in ("messages", "consumer_offsets", "topics", "consumer_groups"):
        (first, n), (second, m) = rows(counted.format(name))
        assert (first, second, n) == ("golden-a", "golden-b", m)


def test_what_cannot_be_read_is_an_error_of_its_query_alone(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    bent = tmp_path / "store"
    shutil.copytree(golden("mixed") / "store", bent)
    for path in (bent / "config").glob("consumerOffset.json*"):
        path.write_text("{", "utf-8")
    create_views(spark, str(bent), prefix="bent_")
    assert spark.table("bent_messages").count() > 0
    with pytest.raises(PySparkException, match=r"consumerOffset\.json"):
        spark.table("bent_consumer_offsets").collect()


def test_sql_tells_in_which_light_queues_a_message_stands(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "light_queues.md").read_text("utf-8")
    (block,) = re.findall(r"^```sql\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    create_views(spark, str(golden("lmq") / "store"))
    found: dict[int, set[tuple[str, int]]] = {}
    for row in spark.sql(block).collect():
        found.setdefault(row.physical_offset, set()).add((row.light_queue, row.place))
    messages = [message for message in Store(golden("lmq") / "store").messages() if message.sys_flag & 12 in {0, 8}]
    expected = {one.physical_offset: {(name, place) for name, _, place in light_places(one)} for one in messages}
    assert found == {offset: places for offset, places in expected.items() if places}


def test_narrow_views_read_no_bodies(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    create_views(spark, str(golden("mixed") / "store"), prefix="narrow_")
    whole, headers = spark.table("narrow_messages"), spark.table("narrow_message_headers")
    assert set(whole.columns) - set(headers.columns) == {"body", "properties"}
    positions = spark.table("narrow_message_positions")
    assert positions.columns == ["topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp"]
    (size,) = positions.agg({"size": "sum"}).collect()
    assert size[0] > 0
    assert whole.agg({"size": "sum"}).collect() == [size]
