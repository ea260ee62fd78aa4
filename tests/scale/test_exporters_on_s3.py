"""Delta in an object store: exporters race, or are refused; tasks write the files; a store is made of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.tables.delta_files import rows
from tests.lakehouse.small_stores import plain, write
from tests.scale.conftest import AWS, ROOT, Bucket
from tests.support.torture import rounds

POM = Path(__file__).parent / "s3a" / "pom.xml"


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hadoop's S3A, and what it needs."""
    made = tmp_path_factory.mktemp("s3a")
    fetch = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={made}"]
    subprocess.run(fetch, check=True, timeout=500)
    return ",".join(map(str, sorted(made.iterdir())))


def environment(bucket: Bucket, jars: str, **more: str) -> dict[str, str]:
    """The environment of a process whose session has S3A; with settings of the bucket."""
    settings = {
        "spark.jars": jars,
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.hadoop.fs.s3a.endpoint": f"http://{bucket.server}",
        "spark.hadoop.fs.s3a.endpoint.region": AWS["AWS_DEFAULT_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": AWS["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": AWS["AWS_SECRET_ACCESS_KEY"],
        **{f"spark.hadoop.fs.s3a.bucket.{bucket.name}.{name}": value for name, value in more.items()},
    }
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell"}


class Driver:
    """A process that exports; see ``s3_driver``."""

    def __init__(self, work: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.scale.s3_driver", str(work)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def landed(bucket: Bucket, table: str, work: Path) -> list[int]:
    """Physical offsets that a table has, with repetitions, by what is in the bucket."""
    for name, data in bucket.tree(table).items():
        path = work / table / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = rows(work / table, ["physical_offset"])
    assert found is not None
    return sorted(offset for (offset,) in found)


@pytest.mark.spark
@pytest.mark.long
def test_two_drivers_commit_at_once_and_one_that_is_killed_is_in_nobodys_way(
    bucket: Bucket, jars: str, tmp_path: Path
) -> None:
    placed = write(tmp_path / "store", plain(30))
    drivers = [Driver(tmp_path, environment(bucket, jars)) for _ in range(2)]
    try:
        assert [driver.hear() for driver in drivers] == ["here", "here"]
        for number in rounds(2):
            for driver in drivers:
                driver.say(f"s3a://{bucket.name}/table{number}")
            assert [driver.hear() for driver in drivers] == ["ready", "ready"]
            for driver in drivers:
                driver.say("go")
            ended = [json.loads(driver.hear()) for driver in drivers]
            assert [each["code"] for each in ended] == [0, 0]
            assert sorted(each["messages"] for each in ended) == [0, 30]
            assert landed(bucket, f"table{number}", tmp_path) == placed
        for driver in drivers:
            driver.say(f"s3a://{bucket.name}/last")
            assert driver.hear() == "ready"
        drivers[0].end()
        drivers[1].say("go")
        assert json.loads(drivers[1].hear()) == {"code": 0, "messages": 30}
        assert landed(bucket, "last", tmp_path) == placed
    finally:
        for driver in drivers:
            driver.end()


@pytest.mark.spark
@pytest.mark.long
def test_without_conditional_puts_the_second_of_two_exporters_is_refused(
    bucket: Bucket, jars: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.scale.s3_exporters",
            f"s3a://{bucket.name}/table",
            bucket.uri("store"),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=900,
        env=environment(bucket, jars, **{"create.conditional.enabled": "false"}),
    )
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
