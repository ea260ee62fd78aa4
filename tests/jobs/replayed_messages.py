"""Golden messages, a replay of them, and what a cluster has got; without a Spark session."""

import base64
import json
from pathlib import Path
from typing import Any

from jobs import replay
from rmq_formats.arrow.messages import SET_BY_BROKERS
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import FLAG_COMPRESSED, FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from rmq_formats.read.query import Query
from rmq_lakehouse.live.source import ClusterSource
from rmq_offline.replay.batch_messages import ORIGIN
from rmq_offline.replay.selection import USER_TOPICS
from tests.spark.live.scenarios import make_topic

Queue = tuple[str, int]
Messages = dict[Queue, list[dict[str, Any]]]
QUEUES = 16  # at least those of any golden topic, so that each queue keeps its number
_USERS = Query(topic_pattern=USER_TOPICS)


def expected_messages(directory: Path) -> Messages:
    """Return the messages that consumers of a golden store's user topics get, by queue and in order."""
    found: Messages = {}
    for line in (directory / "expected" / "messages.jsonl").read_text().splitlines():
        message = json.loads(line)
        transaction = message["sys_flag"] & FLAG_TRANSACTION_MASK
        if not _USERS.wants_topic(message["topic"]) or transaction not in (0, FLAG_TRANSACTION_COMMIT):
            continue
        body = base64.b64decode(message["body_base64"])
        if message["sys_flag"] & FLAG_COMPRESSED:
            body = decompress(body, message["sys_flag"])
        found.setdefault((message["topic"], message["queue_id"]), []).append(
            {
                "body": body,
                "flag": message["flag"],
                "properties": without(message["properties"], *SET_BY_BROKERS),
                "physical_offset": message["physical_offset"],
            }
        )
    return found


def without(properties: dict[str, str], *names: str) -> dict[str, str]:
    """Properties but for some."""
    return {name: value for name, value in properties.items() if name not in names}


def make_topics(namesrv: str, expected: Messages) -> None:
    """The topics of messages."""
    for topic in sorted({topic for topic, _ in expected}):
        make_topic(namesrv, topic, QUEUES)


def arguments(store: Path, namesrv: str, *more: str) -> list[str]:
    """Arguments of the job."""
    return ["--store", str(store), "--to-namesrv", namesrv, "--store-id", "golden", *more]


def replay_store(store: Path, namesrv: str, *more: str) -> tuple[dict[str, Any], int]:
    """The job's check and body; it needs no session to send."""
    parsed = replay.parser().parse_args(arguments(store, namesrv, *more))
    replay.check(parsed)
    return replay.main(parsed, None)  # type: ignore[arg-type]


def sent_messages(namesrv: str, topics: Messages | str) -> Messages:
    """Return a cluster's messages of topics by queue and in order; ORIGIN has the place in the old store."""
    names = {topics} if isinstance(topics, str) else {topic for topic, _ in topics}
    source = ClusterSource({"namesrv": namesrv, "subscribe": ",".join(sorted(names))})
    reader = source.reader(source.schema())
    found: Messages = {}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                store, _, offset = row["properties"][ORIGIN].partition("@")
                assert store == "golden"
                found.setdefault((row["topic"], row["queue_id"]), []).append(
                    {
                        "body": row["body"],
                        "flag": row["flag"],
                        "properties": without(row["properties"], *SET_BY_BROKERS, ORIGIN),
                        "physical_offset": int(offset),
                    }
                )
    return found
