"""Writes ``config/topics.json`` of a store that is written without a broker, so that a broker serves its topics."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rmq_formats.codecs import fastjson, topics_json
from rmq_formats.read.broker_config import read_config
from rmq_formats.storage.contained import parent_directory, read_file, replace_file
from rmq_formats.storage.store_files import open_store
from rmq_offline.verify.config_files import config_fault

TOPICS: Final = "topics.json"


def topic_config(topic: str, queues: int) -> dict[str, Any]:
    """Build a topic's config as in ``topics.json``, with read and write permission."""
    return {
        "attributes": {},
        "order": False,
        "perm": 6,  # read and write
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def read_topics(root: str) -> dict[str, Any]:
    """Read a store's ``topics.json`` or its ``.bak`` as a broker does; empty without both. Raises StoreError."""
    return read_config(open_store(root), TOPICS, _parse_topics) or {}


def _parse_topics(text: str) -> dict[str, Any]:
    topics_json.topic_configs(text)
    document = fastjson.loads(text)
    return document if isinstance(document, dict) else {}


def queue_counts(queues: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Compute how many queues each topic must have to include some queues."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts


def with_topics(document: dict[str, Any], counts: Mapping[str, int], now_ms: int) -> bytes | None:
    """Add topics with at least so many queues to a ``topics.json``; None if nothing changes. Other keys stay."""
    table = document.get("topicConfigTable") or {}
    changed = False
    for topic, queues in counts.items():
        config = table.setdefault(topic, topic_config(topic, 0))
        for name in ("readQueueNums", "writeQueueNums"):
            if config.get(name, 0) < queues:
                config[name] = queues
                changed = True
    if not changed:
        return None
    version = document.get("dataVersion") or {}
    counter = version.get("counter", 0) + 1
    document["dataVersion"] = {"stateVersion": 0, **version, "counter": counter, "timestamp": now_ms}
    document["topicConfigTable"] = table
    return json.dumps(document, indent=1).encode()


def add_topics(root: str, counts: Mapping[str, int], now_ms: int) -> None:
    """Ensure that ``topics.json`` has topics with at least so many queues; all else in it stays.

    The old file becomes the ``.bak`` (``ConfigManager#persist``), unless it does not parse.
    """
    changed = with_topics(read_topics(root), counts, now_ms)
    if changed is None:
        return
    path = f"config/{TOPICS}"
    with parent_directory(root, path, create=True) as (config, name):
        before = read_file(root, path)
        if before is not None and config_fault(path, before) is None:
            replace_file(config, f"{name}.bak", before)
        replace_file(config, name, changed)
