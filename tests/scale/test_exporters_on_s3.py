"""Delta in an object store: of two exporters the second is refused; tasks write the files; a store is made of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scale.conftest import AWS, Bucket
from tests.scale.jobs_on_cluster import ROOT

POM = Path(__file__).parent / "s3a" / "pom.xml"


@pytest.mark.spark
def test_of_two_exporters_the_second_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    fetch = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(fetch, check=True, timeout=500)
    settings = {
        "spark.jars": ",".join(map(str, sorted(jars.iterdir()))),
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.hadoop.fs.s3a.endpoint": f"http://{bucket.server}",
        "spark.hadoop.fs.s3a.endpoint.region": AWS["AWS_DEFAULT_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": AWS["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": AWS["AWS_SECRET_ACCESS_KEY"],
    }
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.scale.s3_exporters",
            f"s3a://{bucket.name}/table", bucket.uri("store"), str(tmp_path),
        ],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=900,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["once"]
    assert found["counts"] == [20, 0]
    (refused,) = found["refused"]
    assert "/table: another export writes there (process " in refused
    assert "/table: its log store is safe for one driver at a time" in found["warned"]
    assert not bucket.tree("table.rmq-leases")
    here, there = found["stats"]
    assert (found["same"], len(here)) == (True, 4)
    assert here == there  # bounds, counts, partitions and sizes are those of a local table
    assert all(re.fullmatch(r"part-[0-9a-f-]{36}\.snappy\.parquet", name) for name in found["files"])  # tasks' own
    assert found["imported"] == 30
    assert "config/topics.json" in bucket.tree("store")
