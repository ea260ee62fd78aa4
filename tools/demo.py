"""The demo: rebuilds, verifies and queries a real store, start to end: ``make demo``, or ``make demo STORE=DIR``.

A broker takes messages from a producer and gives them to a consumer. Its store then loses its queues and its
Index; Spark rebuilds them from the CommitLog, byte for byte; the messages land in a Delta table; a query and
a look-up by key answer from what came of it. Then transactions, a message that waits, and a master that dies.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from rmq_formats.errors import RmqError
from rmq_formats.spark import session
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import open_store
from rmq_offline.spark.job import spark_cause
from rmq_offline.tasks.log_format import log_on_stderr
from tools.demo_traffic import DELAY_S, REBUILD_SIZES, run_messaging, run_traffic

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".demo"
console = Console(highlight=False)


def short(path: Path) -> str:
    """Return a path as one would type it here."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def print_title(text: str) -> None:
    """Print the title of one step of the demo."""
    console.print(f"\n[bold]{text}[/bold]")


def run_job(spark: SparkSession, name: str, *arguments: str) -> dict[str, object]:
    """Run a job in the demo's session, and print the command that runs it in one of its own; return its report."""
    shown = " ".join(f'"{argument}"' if " " in argument else argument for argument in arguments)
    shown = shown.replace(f"{ROOT}/", "")
    console.print(f"  $ python jobs/{name}.py {shown}", style="dim", soft_wrap=True)
    job = importlib.import_module(f"jobs.{name}")
    parsed = job.parser().parse_args(arguments)
    try:
        options = job.check(parsed)
        with log_on_stderr(name):
            report: dict[str, object] = job.main(options, spark)[0]
    except (RmqError, PySparkException, Py4JError) as error:
        cause = str(error) if isinstance(error, RmqError) else spark_cause(error)
        print(f"{name}: {cause}", file=sys.stderr)  # noqa: T201 # one line, not wrapped
        sys.exit(2)
    return report


def write_store() -> Path:
    """Write a store by real sends to our broker; the broker's own queues and Index are moved to ``written``."""
    print_title("1. A broker: messages go in, a consumer gets each of them")
    console.print("  $ rmq standalone --store .demo/store", style="dim")
    store, traffic = run_traffic(WORK)
    console.print(
        f"  {traffic.sent:,} messages sent in {traffic.send_s:.2f} s, one at a time and each acknowledged; "
        f"{traffic.consumed:,} consumed in {traffic.consume_s:.2f} s"
    )
    (WORK / "written").mkdir()
    for name in ("consumequeue", "index"):
        shutil.move(store / name, WORK / "written" / name)
    console.print("  The broker is stopped; its queues and its Index are taken away.")
    return store


def same_files(rebuilt: Path, expected: Path, *, by_name: bool) -> int | None:
    """Return how many files two directories have, all with the same bytes; None where they differ."""
    trees = [
        {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
        for directory in (rebuilt, expected)
    ]
    # IndexFiles are named by the time of their creation: they are compared in order.
    equal = trees[0] == trees[1] if by_name else list(trees[0].values()) == list(trees[1].values())
    return len(trees[0]) if equal else None


def compare(rebuilt: Path, expected: Path, owner: str) -> bool:
    """Compare the rebuilt directories with the expected ones, and print the verdict; ``owner`` describes the latter."""
    good = True
    for name, by_name in (("consumequeue", True), ("index", False)):
        if not (expected / name).exists():
            continue
        count = same_files(rebuilt / name, expected / name, by_name=by_name)
        good &= count is not None
        verdict = f"[green]{count} files, each byte as {owner}[/green]" if count is not None else "[red]differ[/red]"
        console.print(f"  {name:<14}{verdict}")
    return good


def show_table(spark: SparkSession, table: Path) -> tuple[str, str] | None:
    """Print the messages by topic from the Delta table, and topic and key of the newest message that has a key."""
    messages = spark.read.format("delta").load(str(table))
    by_topic = messages.groupBy("topic").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), F.max("store_timestamp").alias("last")
    )
    shown = Table("topic", "messages", "bytes", "last stored (UTC)")
    for row in by_topic.orderBy(F.desc("messages"), "topic").collect():
        shown.add_row(row.topic, f"{row.messages:,}", f"{row.bytes:,}", f"{row.last:%Y-%m-%d %H:%M:%S}")
    console.print(shown)
    plain = F.col("topic").rlike("^[A-Za-z0-9-]+$") & ~F.col("topic").startswith("RMQ")
    keyed = (
        messages.where(plain & (F.size("keys") > 0)).orderBy(F.desc("physical_offset")).select("topic", "keys").first()
    )
    return (keyed["topic"], keyed["keys"][0]) if keyed else None


def show_message(store: Path, topic: str, key: str) -> None:
    """Query one message by its key as an operator does, and print the message."""
    print_title(f"4. Look a message up by its key {key!r}, without a broker")
    console.print(f"  $ rmq query {short(store)} --topic {topic} --key {key}", style="dim", soft_wrap=True)
    rmq = Path(sys.executable).parent / "rmq"
    subprocess.run([str(rmq), "query", str(store), "--topic", topic, "--key", key], check=False)


def show_messaging() -> bool:
    """Show transactions, a timer message, a failover."""
    print_title("5. Transactions, a message that waits, and a master that dies")
    for name in ("master", "slave"):
        console.print(f"  $ rmq broker --store .demo/{name} -c .demo/{name}.conf", style="dim")
    traffic = run_messaging(WORK)
    console.print(
        f"  {traffic.paid + traffic.rolled_back} orders in transactions: {traffic.paid} committed, "
        f"and {traffic.before} delivered; {traffic.rolled_back} rolled back, and never seen"
    )
    console.print(f"  a message that was to wait for {DELAY_S:.1f} s came after {traffic.waited_s:.1f} s")
    console.print(f"  the master is killed; a new consumer gets {traffic.after} messages from its slave")
    return traffic.before == traffic.paid and traffic.waited_s >= DELAY_S and traffic.after == traffic.stored


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a RocketMQ store of yours; it is only read")
    arguments = parser.parse_args()
    if arguments.store:
        try:
            open_store(arguments.store).require_log()
        except RmqError as error:
            print(f"demo: {error}", file=sys.stderr)  # noqa: T201 # one line, not wrapped
            return 2
    # Of the processors' time in a JVM that lives for seconds the optimizing compiler takes most.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    if arguments.store:
        store, out, expected, sizes = Path(arguments.store), WORK / "rebuilt", Path(arguments.store), []
        out.mkdir()
        print_title(f"1. The store {store}")
    else:
        store = out = write_store()
        expected, sizes = WORK / "written", REBUILD_SIZES
    files = open_storage(str(store))[0].entries(str(store / "commitlog"))
    console.print(f"  commitlog: {len(files)} files, {sum(file.size_bytes for file in files):,} bytes")

    print_title("2. Rebuild ConsumeQueue and Index from the CommitLog, on Spark")
    spark = session("demo")
    report = run_job(spark, "rebuild", "--store", str(store), *(["--out", str(out)] if arguments.store else []), *sizes)
    console.print(
        f"  {report['messages']:,} messages, {report['units']:,} units, {report['index_entries']:,} Index entries "
        f"in {report['seconds']} s"
    )
    good = compare(out, expected, "in the store" if arguments.store else "the broker wrote it")

    print_title("3. Land the messages in a Delta table, each once")
    table = WORK / "messages"
    report = run_job(spark, "export_delta", "--store", str(store), "--table", str(table))
    console.print(f"  {report['messages']:,} messages landed in {report['seconds']} s")
    keyed = show_table(spark, table)
    spark.stop()
    if keyed:
        show_message(store, *keyed)
    if not arguments.store:
        good &= show_messaging()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
