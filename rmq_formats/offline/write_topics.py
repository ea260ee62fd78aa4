"""``config/topics.json`` of a store that is written without a broker: a broker serves the topics that it names."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmq_formats import config_json, paths
from rmq_formats.errors import DecodeError, StoreError


def topic_config(topic: str, queues: int) -> dict[str, Any]:
    """A topic as ``topics.json`` has it: read and written by all."""
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
    """What a store's ``topics.json`` says; nothing where there is none.

    Raises:
        StoreError: there is one that cannot be read.
    """
    path = Path(paths.config_dir(root)) / "topics.json"
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        config_json.topic_configs(text)
        found = config_json.loads(text)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}") from error
    return found if isinstance(found, dict) else {}


def queue_counts(queues: Iterable[tuple[str, int]]) -> dict[str, int]:
    """How many queues each topic must have for these to be among them."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts


def add_topics(root: str, counts: Mapping[str, int], now_ms: int) -> None:
    """See that ``topics.json`` names topics with at least so many queues; all else in it stays.

    The old file becomes the ``.bak`` (``ConfigManager#persist``).
    """
    found = read_topics(root)
    table = found.get("topicConfigTable") or {}
    changed = False
    for topic, queues in counts.items():
        config = table.setdefault(topic, topic_config(topic, 0))
        for name in ("readQueueNums", "writeQueueNums"):
            if config.get(name, 0) < queues:
                config[name] = queues
                changed = True
    if not changed:
        return
    version = found.get("dataVersion") or {}
    found["dataVersion"] = {"stateVersion": 0, **version, "counter": version.get("counter", 0) + 1, "timestamp": now_ms}
    found["topicConfigTable"] = table
    path = Path(paths.config_dir(root)) / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name("topics.json.part")
    fresh.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if path.exists():
        path.with_name("topics.json.bak").write_bytes(path.read_bytes())
    fresh.replace(path)
