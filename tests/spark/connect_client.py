"""A client of Spark Connect, in a process that has no JVM: ``python -m tests.spark.connect_client URL STORE``.

It prints what it saw as a JSON object.
"""

import json
import sys
from typing import Any

from pyspark.sql import functions as F

from rmq_formats.spark import create_views, explain, session
from spark_udfs import rmq_crc32  # made before there is a session, as programs do

LAG = (
    "SELECT group, sum(committed_offset), sum(lag_messages) FROM remote_consumer_offsets GROUP BY group ORDER BY group"
)


def seen(url: str, store: str) -> dict[str, Any]:
    """Use what the project gives a session."""
    spark = session(remote=url)
    messages = spark.read.format("rmq_commitlog").option("subscribe", "Orders").load(store)
    units = spark.read.format("rmq_consumequeue").load(store)
    chosen = messages.where(F.col("record_error").isNull()).join(units.select("physical_offset"), "physical_offset")
    views = create_views(spark, store, prefix="remote_")
    return {
        "lag": [list(row) for row in spark.sql(LAG).collect()],
        "views": {view: spark.table(view).count() for view in views if view != "remote_messages"},
        "session": type(spark).__module__,
        "zone": spark.conf.get("spark.sql.session.timeZone"),
        "messages": spark.read.format("rmq_commitlog").load(store).count(),
        "entries": spark.read.format("rmq_index").load(store).count(),
        "sound": messages.where(rmq_crc32("body") == F.col("body_crc")).count(),
        "orders": messages.count(),
        "sql": spark.sql("SELECT rmq_tags_code('TagA') AS code").first()["code"],
        "explained": explain(chosen).splitlines(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seen(*sys.argv[1:])) + "\n")
