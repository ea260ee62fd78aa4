"""Tables over stores in Spark's catalog: what ``CREATE TABLE … USING rmq_…`` can do, and what it cannot."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError
from rmq_formats.spark import explain
from rmq_formats.spark.options.schemas import COMMITLOG, get_source_options, table_options, with_options
from rmq_formats.spark.sources import data_sources
from tests.spark.conftest import Load

CLIENT = Path(__file__).with_name("catalog_client.py")  # by its path: an installation has the sources, or none

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_plain_session_finds_the_sources_and_its_tables_keep_their_options(
    golden: Callable[[str], Path], load: Load, tmp_path: Path
) -> None:
    store = tmp_path / "a store"
    shutil.copytree(golden("mixed") / "store", store)
    files = sorted(store.rglob("*"))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(CLIENT), str(store)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    orders = load(store, subscribe="Orders").count()
    assert seen["tags"] == seen["units"] == [[orders]]
    assert seen["ordered"] == [[load(store, subscribe="Ordered").count()]]
    assert seen["lag"] == [[group, 0] for group in ("CID_RMQ_SYS_TRANS", "golden_cg", "golden_cg_ok")]
    assert seen["explained"] == explain(load(store, subscribe="Orders"))
    assert "a table cannot keep the option secretkey" in seen["secret"]
    assert "hidden" not in seen["secret"]
    assert seen["columns"] == []
    assert "option path is missing" in seen["own"]
    assert "option path is missing" in seen["inserted"]
    assert "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY" in seen["direct"]
    assert seen["left"] == [["default", "tags", False]]
    assert sorted(store.rglob("*")) == files  # a table that is dropped leaves its store


def test_delta_s_catalog_cannot_have_them(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    spark.sql(f"CREATE TABLE in_deltas USING rmq_commitlog OPTIONS (path '{golden('mixed') / 'store'}')")
    with pytest.raises(AnalysisException, match="rmq_commitlog is not a valid Spark SQL Data Source"):
        spark.sql("SELECT count(*) FROM in_deltas")
    spark.sql("DROP TABLE in_deltas")
    assert (golden("mixed") / "store" / "commitlog").is_dir()


@pytest.mark.parametrize("source", data_sources())
def test_each_source_keeps_what_a_table_was_made_with(source: type[DataSource]) -> None:
    own = {"namesrv": "h:1", "subscribe": "T"} if source.name() == "rmq" else {"path": "/data/store"}
    properties = {"provider": source.name(), "owner": "root", **{f"option.{name}": own[name] for name in own}, **own}
    plain, kept = source(own).schema(), source(properties).schema()
    assert isinstance(plain, StructType)
    assert isinstance(kept, StructType)
    assert kept.fieldNames() == plain.fieldNames()
    assert table_options(kept, {}) == own
    assert source({}).reader(kept)
    with pytest.raises(OptionError, match=r"is missing|needs"):
        source({}).reader(plain)


def test_options_of_a_table_are_those_of_its_creation() -> None:
    properties = {
        "provider": "rmq_commitlog", "owner": "root", "comment": "c", "path": "file:/data/store", "subscribe": "T",
        "option.subscribe": "T", "location": "file:/data/store",
    }  # fmt: skip
    assert get_source_options(properties) == {"subscribe": "T", "path": "/data/store"}
    assert get_source_options({**properties, "path": "s3://bucket/store"})["path"] == "s3://bucket/store"
    assert get_source_options({"path": "/data/store"}) == {"path": "/data/store"}
    schema = with_options(COMMITLOG, properties)
    assert schema.fieldNames() == COMMITLOG.fieldNames()
    assert table_options(schema, {}) == {"subscribe": "T", "path": "/data/store"}
    assert table_options(schema, {"Subscribe": "U"}) == {"path": "/data/store", "Subscribe": "U"}
    assert table_options(COMMITLOG, {"path": "/data/store"}) == {"path": "/data/store"}
    assert with_options(COMMITLOG, {"path": "/data/store"}) is COMMITLOG
