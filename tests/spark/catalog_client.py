"""Tables over stores in the catalog of a plain session, which nobody has registered a source with: ``… STORE``.

It prints what it saw as a JSON object.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.spark import explain


def seen(store: str) -> dict[str, Any]:
    """Create tables, select from them, drop them."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(Path.cwd() / "warehouse"),
        "spark.python.daemon.module": "rmq_formats.spark.daemon",  # or each step of each query loads the kernels
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def told(query: str) -> Any:
        try:
            return [list(row) for row in spark.sql(query).collect()]
        except PySparkException as error:
            return str(error)

    told(f"CREATE TABLE orders USING rmq_commitlog OPTIONS (path '{store}', subscribe 'Orders')")
    told(f"CREATE TABLE units USING rmq_consumequeue LOCATION '{store}'")
    told(f"CREATE TABLE lag USING rmq_offsets OPTIONS (path '{store}', columns 'group,lag_messages')")
    told("CREATE VIEW tags AS SELECT tags, count(*) AS n FROM orders GROUP BY tags")  # a persistent one
    found = {
        "tags": told("SELECT sum(n) FROM tags"),
        "units": told("SELECT count(*) FROM units WHERE topic = 'Orders'"),
        "ordered": told("SELECT count(*) FROM orders WITH (subscribe = 'Ordered')"),
        "lag": told("SELECT group, sum(lag_messages) FROM lag GROUP BY group ORDER BY group"),
        "secret": told("CREATE TABLE live USING rmq OPTIONS (namesrv 'h:1', subscribe 'T', secretKey 'hidden')"),
        "columns": told(f"CREATE TABLE own (topic STRING) USING rmq_commitlog OPTIONS (path '{store}')"),
        "own": told("SELECT * FROM own"),
        "direct": told(f"SELECT * FROM rmq_commitlog.`{store}`"),
        "explained": explain(spark.table("orders")),
        "inserted": told("INSERT INTO orders SELECT * FROM orders"),
    }
    for table in ("orders", "units", "lag", "own"):
        told(f"DROP TABLE {table}")
    return found | {"left": told("SHOW TABLES")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seen(*sys.argv[1:])) + "\n")
