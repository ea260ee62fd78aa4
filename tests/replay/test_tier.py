"""A replay from tiered storage and its store: each message once, whichever of both still has it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs import replay
from rmq_formats.errors import OptionError, StoreNotFoundError
from rmq_offline.replay.run import count
from rmq_offline.replay.source import plan_replay

Golden = Callable[[str], Path]
Place = tuple[str, int, int]
ENDS = ("topic", "queue_id", "queue_offset")
LOG_FILES = 2


@pytest.fixture(scope="module")
def expired(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden store ``tiered``, whose CommitLog has lost its first files as it does in time."""
    store = tmp_path_factory.mktemp("tier") / "store"
    shutil.copytree(golden("tiered") / "store", store)
    for path in sorted((store / "commitlog").iterdir())[:LOG_FILES]:
        path.unlink()
    return store


@pytest.fixture(scope="module")
def sent(golden: Golden) -> set[Place]:
    """Places of all messages that consumers could have had."""
    lines = (golden("tiered") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    messages = [json.loads(line) for line in lines]
    return {tuple(message[name] for name in ENDS) for message in messages if message["topic"] != "SCHEDULE_TOPIC_XXXX"}


def given(store: Path, *more: str) -> Any:
    target = ["--to-namesrv", "127.0.0.1:1", "--store-id", "golden"]
    return replay.parser().parse_args(["--store", str(store), *target, *more])


def places(arguments: Any) -> list[Place]:
    """List the messages of a replay, in order."""
    replay.check(arguments)
    planned = replay.replay_of(arguments)
    counts = count(planned)
    batches = plan_replay(planned, counts, ENDS).rows(counts.missing)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert counts.messages == len(rows)
    assert sum(counts.by_queue.values()) == len(rows)
    return [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows]


def test_what_the_log_has_no_more_comes_first(expired: Path, sent: set[Place]) -> None:
    replayed = places(given(expired, "--tier", str(expired / "tiered")))
    assert len(replayed) == len(sent)
    assert set(replayed) == sent
    for queue in {place[:2] for place in replayed}:
        offsets = [place[2] for place in replayed if place[:2] == queue]
        assert offsets == sorted(offsets), queue
    assert len(places(given(expired))) < len(replayed)


def test_topics_and_offsets_choose_in_both(expired: Path, sent: set[Place]) -> None:
    more = ["--topics", "Orders", "--starting-offsets", '{"Orders": {"0": 100, "1": -2, "2": -2, "3": -2}}']
    replayed = places(given(expired, "--tier", str(expired / "tiered"), *more))
    assert set(replayed) == {place for place in sent if place[0] == "Orders" and (place[1] != 0 or place[2] >= 100)}


def test_a_part_of_the_log_by_its_bytes_has_nothing_of_the_tier(expired: Path) -> None:
    begin = ["--starting-physical-offset", "600000"]
    assert places(given(expired, "--tier", str(expired / "tiered"), *begin)) == places(given(expired, *begin))


def test_origins_are_places_in_queues_which_a_message_keeps_in_the_tier(expired: Path) -> None:
    planned = replay.replay_of(given(expired, "--tier", str(expired / "tiered")))
    rows = pa.RecordBatch.from_pylist([{"topic": "Orders", "queue_id": 1, "queue_offset": 7}])
    assert pa.concat_arrays(planned.origin.places(rows)).to_pylist() == [b"golden@", b"Orders", b"/", b"1", b"/", b"7"]


def test_what_cannot_be_is_told(expired: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--checkpoint and --tier: cannot be combined"):
        replay.check(given(expired, "--tier", str(expired / "tiered"), "--checkpoint", str(tmp_path)))
    with pytest.raises(StoreNotFoundError, match="no tiered storage"):
        places(given(expired, "--tier", str(tmp_path)))
