"""``docs/recipes.md``: each of its blocks runs, in the page's order, and the answers are right."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

# The same questions, answered record by record and without Spark.
CHECKS = """
import json
from collections import Counter
every = list(store.messages())
bodies = [(m, json.loads(m.body)) for m in every]
plain = [(m.topic, b) for m, b in bodies if m.topic in {"Orders", "Payments"}]
created = {b["order"] for topic, b in plain if b["event"] == "created"}
settled = {b["order"] for topic, b in plain if b["event"] == "cancelled"}
settled |= {b["order"] for topic, b in plain if topic == "Payments" and isinstance(b["amount"], float)}
by_queue = Counter((m.topic, m.queue_id) for m in every)
behind = Counter()
from pathlib import Path
from rmq_formats.codecs.fastjson import loads
table = loads(Path("/data/store/config/consumerOffset.json").read_text())["offsetTable"]
for name, queues in table.items():
    topic, group = name.split("@")
    for queue, offset in queues.items():
        behind[group, topic] += by_queue[topic, int(queue)] - offset
assert by_hour.agg(F.sum("count")).collect()[0][0] == messages.count() == len(every)
assert evening.count() == sum(1773172800000 <= m.store_timestamp_ms < 1773176400000 for m in every) > 0
assert paid.count() == len(store.query(topic="Payments", key="order-4711")) == 2
assert [row.msg_id for row in by_id.collect()] == [store.query(topic="Payments", key="order-4711")[-1].msg_id]
assert sorted(row.queue_offset for row in by_offset.collect()) == list(range(100, 110))
assert trace.count() == sum("order-4711" in m.keys for m in every)
assert manual.count() == sum(m.tags == "manual" for m in every) == 1
assert {row.order for row in lost.collect()} == created - settled
assert twice.count() == 0
(row,) = failed.collect()
retried = [m for m in every if m.topic.startswith(("%RETRY%", "%DLQ%"))]
assert (row.topic, row.group, row.messages) == ("Payments", "billing", len({m.uniq_key for m in retried}))
assert (row.most_tries, row.dead_letters) == (17, 1)
assert not_in_a_queue.count() == damaged.count() == 0
assert {(row.group, row.topic): row.lag for row in lag.collect()} == behind
assert behind["shipping", "Orders"] > 0
assert spark.read.parquet("/lake/messages_parquet").count() == len(every)
assert best.count() > 500
assert exported.count() == exported.select("physical_offset").distinct().count() == orders.count_rows()
assert spark.table("payments").count() == sum(m.topic == "Payments" for m in every)
print("CHECKED")
"""


def _program() -> str:
    """The page's Python and SQL as one program; a line before each block, so that a failure names it."""
    parts = []
    for number, (language, text) in enumerate(BLOCKS):
        parts.append(f"print('BLOCK', {number})")
        parts.append(text if language == "python" else f"spark.sql({text!r}).show()" if language == "sql" else "")
    return "\n".join([*parts, CHECKS])


def test_every_block_is_of_a_language_that_is_run() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "sql", "sh"}
    assert len(BLOCKS) == PAGE.count("\n```") / 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page's names for places, and what they stand for here."""
    directory = tmp_path_factory.mktemp("recipes")
    write = "import sys; from pathlib import Path; from shop import write_shop; write_shop(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", write, str(directory)], cwd=ROOT / "notebooks", check=True)
    return {"/data/store": str(directory / "store"), "/lake": str(directory / "lake")}


def _here(text: str, places: dict[str, str]) -> str:
    for name, path in places.items():
        text = text.replace(name, path)
    return text


@pytest.mark.long
@pytest.mark.spark
def test_the_recipes_run_and_are_right(places: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "recipes.py"
    program.write_text(_here(_program(), places), "utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    assert done.stdout.endswith("CHECKED\n")


@pytest.mark.long
def test_its_commands_run(places: dict[str, str]) -> None:
    commands = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", _here(command, places)], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "order-4711" in done.stdout
