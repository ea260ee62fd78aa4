"""Second wave of a verification: a task compares the queues of one partition with what the log gives them."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats import paths, rebuild
from rmq_formats.errors import StoreError
from rmq_formats.findings import FindingList, Kind
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.layout import UNIT_BYTES
from rmq_formats.offline import spill
from rmq_formats.offline.area import WorkArea
from rmq_formats.offline.rebuild import write_text
from rmq_formats.offline.verify_plan import StoreLayout
from rmq_formats.segment import Storage, open_storage, opened
from rmq_formats.verify import kinds
from rmq_formats.verify.ext import ExtTable
from rmq_formats.verify.facts import LogFacts
from rmq_formats.verify.queue import QueueCheck, QueueFile, QueueName
from rmq_formats.verify.small import Claim

_NO_ROWS = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)
_NO_BYTES = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a task of the second wave found.

    Attributes:
        findings: what is wrong.
        excused: what is none if a broker wrote on in the meantime.
        queue_count: queues compared.
        unit_count: messages that should be in them.
    """

    findings: FindingList
    excused: FindingList
    queue_count: int
    unit_count: int


def write_facts(work: WorkArea, facts: LogFacts) -> None:
    """Leave what is known of the log to the tasks."""
    bounds = np.array([facts.start, facts.end, facts.largest_record_bytes], dtype=np.int64)
    write_arrays(work, "facts.npz", bounds=bounds, begins=facts.lost_begins, ends=facts.lost_ends)


def write_arrays(work: WorkArea, name: str, **arrays: Any) -> None:
    """Write numpy arrays by their names, for ``np.load``."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.savez(file, **arrays)

    work.write(name, write)


def read_facts(work: WorkArea) -> LogFacts:
    """The reverse of ``write_facts``."""
    with np.load(io.BytesIO(work.read_bytes("facts.npz"))) as arrays:
        start, end, largest = arrays["bounds"].tolist()
        return LogFacts(start, end, arrays["begins"], arrays["ends"], largest)


def write_queue_notes(
    work: WorkArea,
    directories: Sequence[Sequence[tuple[str, int]]],
    known_topics: frozenset[str] | None,
    unchecked_topics: frozenset[str],
    claims: Sequence[tuple[str, Sequence[Claim]]],
) -> None:
    """Leave what the store has of queues to the tasks, a file for each partition.

    Args:
        work: the work directory.
        directories: topic and queue id of each queue that has a directory, by partition.
        known_topics: of ``config/topics.json``; None without one.
        unchecked_topics: whose queues are of another kind.
        claims: of consumers and of the broker, by the path of the file that makes them.
    """
    notes = {
        "known_topics": None if known_topics is None else sorted(known_topics),
        "unchecked_topics": sorted(unchecked_topics),
    }
    write_text(work, "topics.json", json.dumps(notes))
    parts: list[list[Any]] = [[] for _ in directories]
    for path, made in claims:
        for claim in made:
            partition = spill.queue_partition(claim.topic, claim.queue_id, len(directories))
            parts[partition].append([path, claim.topic, claim.queue_id, claim.queue_offset, claim.group])
    for partition, own in enumerate(directories):
        text = json.dumps({"directories": own, "claims": parts[partition]})
        write_text(work, f"queues-{partition:06d}.json", text)


def check_queues(partition: int, root: str, split_count: int, layout: StoreLayout, work: WorkArea) -> PartResult:
    """Task: compare the queues of one partition.

    Args:
        partition: which.
        root: of the store.
        split_count: of the first wave.
        layout: the broker's sizes.
        work: the work directory.
    """
    queues: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(work.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows):
                queues.setdefault((topic, queue_id), []).append(rows)
    notes = json.loads(work.read_text(f"queues-{partition:06d}.json"))
    for topic, queue_id in notes["directories"]:
        queues.setdefault((topic, queue_id), [])
    claims: dict[tuple[str, int], list[tuple[str, Claim]]] = {}
    for path, topic, queue_id, queue_offset, group in notes["claims"]:
        claims.setdefault((topic, queue_id), []).append((path, Claim(topic, queue_id, queue_offset, group)))
    task = _PartitionCheck(root, layout, work)
    unit_count = 0
    for name in sorted(queues):
        parts = queues.pop(name)
        rows = np.concatenate(parts) if parts else _NO_ROWS
        unit_count += len(rows)
        task.check(QueueName(*name), rows, claims.get(name, ()))
    return PartResult(task.findings, task.excused, task.queue_count, unit_count)


def is_named_topic(topic: str) -> bool:
    """Whether a topic can have a directory of its own: what was no UTF-8 in its record, has none."""
    return paths.is_safe_topic(topic) and "\N{REPLACEMENT CHARACTER}" not in topic


class _PartitionCheck:
    """What the queues of one partition have in common."""

    def __init__(self, root: str, layout: StoreLayout, work: WorkArea) -> None:
        self.storage, self.root = open_storage(root)
        self.layout = layout
        self.facts = read_facts(work)
        self.findings = FindingList()
        self.excused = FindingList()
        self.queue_count = 0
        topics = json.loads(work.read_text("topics.json"))
        self.known_topics = None if topics["known_topics"] is None else frozenset(topics["known_topics"])
        self.unchecked_topics = frozenset(topics["unchecked_topics"])

    def check(self, name: QueueName, rows: NDArray[np.int64], claims: Sequence[tuple[str, Claim]]) -> None:
        """Compare one queue."""
        if not is_named_topic(name.topic):
            return  # the scan has told it of each record
        if name.topic in self.unchecked_topics:
            self.findings.add(name.finding(kinds.NOT_CHECKED, "a BatchConsumeQueue"))
            return
        directory = paths.queue_dir(paths.consumequeue_dir(self.root), name.topic, name.queue_id)
        files = self._files(
            name, directory, kinds.QUEUE_UNREADABLE, kinds.QUEUE_FOREIGN, self.layout.consumequeue_file_bytes
        )
        if files is None:
            return
        if not files and len(rows) and self.known_topics is not None and name.topic not in self.known_topics:
            detail = f"{len(rows)} messages of a topic that is not known, and no files"
            self.findings.add(name.finding(kinds.TOPIC_DELETED, detail, count=len(rows)))
            return
        self.queue_count += 1
        check = QueueCheck(name, rebuild.place_units(rows), self.facts, self.findings, self.excused, self._ext(name))
        check.check(files, self.layout.consumequeue_file_bytes)
        for path, claim in claims:
            if claim.queue_offset > check.end_offset:
                self.excused.add(claim.finding(check.end_offset, path))

    def _files(
        self, name: QueueName, directory: str, unreadable: Kind, foreign: Kind, file_bytes: int
    ) -> list[QueueFile] | None:
        """The files of a queue; None where the directory cannot be read."""
        try:
            entries = self.storage.entries(directory)
        except StoreError as error:
            self.findings.add(name.finding(unreadable, str(error), path=directory))
            return None
        files = []
        for entry in entries:
            path = f"{directory}/{entry.name}"
            start_offset = paths.parse_segment_name(entry.name, entry.size_bytes)
            if entry.is_directory:
                self.findings.add(name.finding(kinds.STRAY, "a directory among a queue's files", path=path))
            elif start_offset is None:
                self.findings.add(name.finding(foreign, "no name of a queue's file", path=path, size=entry.size_bytes))
            else:
                reader = _Reader(self.storage, path, file_bytes)
                files.append(QueueFile(path, start_offset, entry.size_bytes, reader.read))
        return files

    def _ext(self, name: QueueName) -> ExtTable | None:
        """The queue's ConsumeQueueExt units, if the store has any of any queue."""
        file_bytes = self.layout.consumequeue_ext_file_bytes
        if not file_bytes:
            return None
        directory = paths.queue_dir(paths.consumequeue_ext_dir(self.root), name.topic, name.queue_id)
        table = ExtTable(name.topic, name.queue_id, self.findings)
        files = self._files(name, directory, kinds.EXT_UNREADABLE, kinds.EXT_FOREIGN, file_bytes) or []
        for file in files:
            if file.size_bytes != file_bytes:
                self.findings.add(
                    name.finding(kinds.EXT_FILE_SIZE, "file of another size than the others", path=file.path,
                                 expected=str(file_bytes), actual=str(file.size_bytes))
                )  # fmt: skip
            try:
                data = np.zeros(file_bytes, dtype=np.uint8)
                used = file.read()[:file_bytes]
                data[: len(used)] = used
                table.add_file(file.path, file.start_offset, data, is_last=file is files[-1])
            except StoreError as error:
                self.findings.add(name.finding(kinds.EXT_UNREADABLE, str(error), path=file.path))
        table.freeze()
        return table


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the used bytes of one file."""

    storage: Storage
    path: str
    file_bytes: int

    def read(self) -> NDArray[np.uint8]:
        """Raises StoreError."""
        try:
            with opened(self.storage, self.path) as file:
                end = min(file.data_end(), self.file_bytes)
                if not end:
                    return _NO_BYTES
                data = np.empty(-(-end // UNIT_BYTES) * UNIT_BYTES, dtype=np.uint8)
                got = file.read_into(0, data.data)
                data[got:] = 0
                return data
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror or error})") from error
