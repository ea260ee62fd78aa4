"""Helpers of the rebuild's tests: runners, options, what the codecs make of a log, and tree snapshots."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmq_formats.codecs.consumequeue import Unit, delay_levels_ms
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.paths import is_safe_topic, parse_segment_name
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage
from rmq_formats.codecs.record_frame import Damage
from rmq_offline.rebuild.changes import ALL
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.publication import PublishOptions
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.tasks.runner import ProcessRunner, Runner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.conftest import GoldenSettings
from tests.support.oracles.commitlog_walk import Frame, walk
from tests.support.oracles.consumequeue import build_consumequeue, dispatch_tags_code, goes_to_consumequeue
from tests.support.oracles.index import build_index, index_keys
from tests.support.oracles.light_queues import light_places
from tests.support.stores.store_files import tree, write_commitlog

SMALL = RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 20, (1000, 5000)))
HOST = Host.parse("127.0.0.1:10911")


class Splits:
    """Cuts a log into about so many splits, whatever runs them."""

    def __init__(self, splits: int, runner: Runner | None = None) -> None:
        self.parallelism = splits
        self._runner = runner or ProcessRunner(1)

    def map(
        self, function: Callable[[Any], Any], arguments: Sequence[Any], on_done: Callable[[Any], None] | None = None
    ) -> list[Any]:
        return self._runner.map(function, arguments, on_done)


def golden_options(settings: GoldenSettings) -> RebuildOptions:
    return RebuildOptions(
        True,
        True,
        StoreSizes(
            1 << 30,
            settings.consumequeue_file_bytes,
            settings.ext_file_bytes or 0,
            settings.index_slots,
            settings.index_entries,
            delay_levels_ms(settings.delay_levels),
            settings.tags_from,
            settings.batch_file_bytes,
        ),
    )


def rebuild(
    store: Path, out: Path | None = None, options: RebuildOptions = SMALL, runner: Runner | None = None
) -> RebuildReport:
    """Rebuild, whatever that takes from consumers."""
    publishing = PublishOptions(accept=frozenset({ALL}))
    return rebuild_store(
        str(store), str(out) if out else None, options, runner or ProcessRunner(1), publishing=publishing
    )


@dataclass(frozen=True)
class Built:
    """Queue files by their path below the root, and IndexFiles in the order of their names."""

    queues: dict[str, bytes]
    index: list[bytes]


def built(root: Path) -> Built:
    """What stands in a directory."""
    names = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
    queues = {f"{name}/{path}": data for name in names for path, data in tree(root / name).items()}
    index = tree(root / "index")
    return Built(queues, [index[name] for name in sorted(index)])


def by_codecs(store: Path, options: RebuildOptions = SMALL) -> Built:
    """What the plain-Python codecs make of a store's CommitLog, without ConsumeQueueExt."""
    queues: dict[tuple[str, int], list[tuple[int, Unit]]] = {}
    entries: list[tuple[int | None, int, int]] = []
    for message in stored_messages(store):
        if options.live_topics is not None and message.topic not in options.live_topics:
            continue
        if goes_to_consumequeue(message.sys_flag) and is_safe_topic(message.topic):
            unit = Unit(
                message.physical_offset, message.size, dispatch_tags_code(message, options.sizes.delay_levels_ms)
            )
            for *queue, offset in [(message.topic, message.queue_id, message.queue_offset), *light_places(message)]:
                queues.setdefault((queue[0], queue[1]), []).append((offset, unit))
        hashes = [index_key_hash(message.topic, key) for key in index_keys(message, options.sizes.tags_from)]
        for key_hash in hashes or ([None] if options.live_topics is None else []):
            entries.append((key_hash, message.physical_offset, message.store_timestamp_ms))
    files = {
        f"consumequeue/{topic}/{queue_id}/{start:020d}": image
        for (topic, queue_id), units in queues.items()
        for start, image in build_consumequeue(units, options.sizes.consumequeue_file_bytes, lost_ranges(store)).items()
    }
    return Built(files, build_index(entries, options.sizes.index_slots, options.sizes.index_entries))


def lost_ranges(store: Path) -> list[tuple[int, int]]:
    """Begin and end of what cannot be read between the log's first byte and its last file."""
    lost: list[tuple[int, int]] = []
    end = None
    for path in sorted((store / "commitlog").iterdir()):
        start = parse_segment_name(path.name)
        if start is None or not path.is_file():
            continue
        if end is not None and end < start:
            lost.append((end, start))
        end = start
        for item in walk(path.read_bytes(), start):
            end = item.physical_offset + item.size
            if isinstance(item, Damage):
                lost.append((item.physical_offset, end))
    return lost


def stored_messages(store: Path) -> Iterator[StoredMessage]:
    for path in sorted((store / "commitlog").iterdir()):
        start = parse_segment_name(path.name)
        if start is not None:
            yield from (item.decode() for item in walk(path.read_bytes(), start) if isinstance(item, Frame))


def copy_of(store: Path, target: Path) -> Path:
    """A store of one's own, with the times of the first."""
    shutil.copytree(store, target)
    return target


def commitlog_only(store: Path, target: Path) -> Path:
    shutil.copytree(store / "commitlog", target / "commitlog")
    return target


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory: inode, time of change, and content."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(directory))] = (status.st_ino, status.st_mtime_ns, content)
    return found


def message(number: int, topic: str = "", **more: Any) -> MessageToStore:
    """A message of a small store: three topics of two queues, one key each."""
    fields: dict[str, Any] = {
        "topic": topic or f"Topic{number % 3}", "queue_id": number % 2, "flag": 0, "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_000, "born_host": HOST, "store_host": HOST, "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body": b"x" * (1 + number % 50),
        "properties_bytes": encode_properties({"KEYS": f"key{number}", "TAGS": f"Tag{number % 4}"}),
    }  # fmt: skip
    return MessageToStore(**{**fields, **more})


def small_store(root: Path, count: int = 120, file_bytes: int = 4096) -> Path:
    """A store of a few files; nothing but a CommitLog."""
    write_commitlog(root, [message(number) for number in range(count)], file_bytes)
    return root


def patch(store: Path, physical_offset: int, data: bytes, file_bytes: int = 4096) -> None:
    """Overwrite bytes of the CommitLog."""
    path = store / "commitlog" / f"{physical_offset // file_bytes * file_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(physical_offset % file_bytes)
        file.write(data)


def live(options: RebuildOptions, *topics: str) -> RebuildOptions:
    return replace(options, live_topics=frozenset(topics))
