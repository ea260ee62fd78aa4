"""Checks a store's small files in the driver of a verification: ``abort``, checkpoint, and the broker's config."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from rmq_formats.codecs import paths, topics_json
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import DecodeError, StoreError
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.verify import checkpoint, committed_offsets, finding_kinds, layout_finding_kinds
from rmq_offline.verify.config_files import RocksDbConfig, read_config_texts, read_rocksdb_config
from rmq_offline.verify.controller_files import check_broker_identity, check_epochs
from rmq_offline.verify.dledger_entries import check_dledger_files
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import LogFacts
from rmq_offline.verify.phases import scan as job_scan
from rmq_offline.verify.phases.queue_directories import QueuesByPartition
from rmq_offline.verify.phases.queues import TopicsAndOffsets
from rmq_offline.verify.phases.scan import SplitCheck
from rmq_offline.verify.tier_metadata import read_begins_elsewhere

_NAMED_DIRECTORIES: Final = ("commitlog", "consumequeue", "index", "config")


def read_checkpoint_bytes(storage: Storage, path: str) -> tuple[bytes | None, int]:
    """Read the checkpoint as a broker does, and the file's size; None if there is none or it cannot be read."""
    try:
        with storage.open(path) as file:
            return read_range(file, 0, min(file.size_bytes, CHECKPOINT_FILE_BYTES)), file.size_bytes
    except (StoreError, OSError):
        return None, 0


class SmallFilesCheck:
    """Check of a store's small files."""

    def __init__(self, store: StoreFiles, findings: FindingList, race_findings: FindingList) -> None:
        self.store = store
        self.findings, self.race_findings = findings, race_findings

    def check(self, queues: QueuesByPartition, checks: Sequence[SplitCheck]) -> TopicsAndOffsets:
        """Check the small files, and topics of queues with directories; return topics and committed offsets."""
        abort = paths.abort_file(self.store.root)
        if self.store.storage.exists(abort):
            self.findings.report(finding_kinds.ABORT, "the file abort is there", abort)
        self._check_names()
        self._check_checkpoint(checks)
        spans = [check.entries for check in checks if check.entries is not None]
        for directory in self.store.dledger_directories:  # a broker may have written later entries meanwhile
            self.race_findings.extend(check_dledger_files(self.store.storage, directory, spans))
        config = paths.config_dir(self.store.root)
        texts = read_config_texts(self.store.storage, config, self.findings)
        stored = read_rocksdb_config(self.store, self.findings)
        topic_names = self._read_topic_names(texts.get("topics.json"), stored)
        if topic_names is not None:
            self._report_unknown_topics(queues, topic_names)
        elif queues.topics and self._lacks_topics(texts):
            detail = "neither it nor its .bak is there"
            self.findings.report(finding_kinds.CONFIG_TOPICS, detail, f"{config}/topics.json")
        plain, light = committed_offsets.CONSUMER_OFFSETS, committed_offsets.LIGHT_CONSUMER_OFFSETS
        offsets = {
            f"{config}/{name}": list(committed_offsets.parse_consumer_offsets(texts.get(name, "{}")))
            for name in (plain, light)
        }
        if stored.committed_offsets is not None:
            offsets = {stored.offsets_path or f"{config}/{plain}": list(stored.committed_offsets)}
        delays = committed_offsets.parse_delay_offsets(texts.get("delayOffset.json", "{}"))
        offsets[f"{config}/delayOffset.json"] = list(delays)
        offset_queues = {(committed.topic, committed.queue_id) for file in offsets.values() for committed in file}
        return TopicsAndOffsets(
            known_topics=topic_names,
            batch_topics=self.store.layouts.batch_topics.union(
                stored.batch_topics, *(check.batch_topics for check in checks)
            ),
            offsets=offsets,
            begins_elsewhere=read_begins_elsewhere(self.store, offset_queues),
        )

    def _check_names(self) -> None:
        """Report names with backslashes: a path of Windows in one name, which no broker looks for."""
        root = self.store.root
        for directory in (root, *(f"{root}/{name}" for name in _NAMED_DIRECTORIES)):
            with suppress(StoreError):  # other checks report unreadable directories
                names = [entry.name for entry in self.store.storage.entries(directory) if "\\" in entry.name]
                if names:
                    detail = f"{len(names)} names with a backslash, the first is {names[0]}"
                    self.findings.report(finding_kinds.BACKSLASH, detail, f"{directory}/{names[0]}", count=len(names))

    def _check_checkpoint(self, checks: Sequence[SplitCheck]) -> None:
        path = paths.checkpoint_file(self.store.root)
        data, size_bytes = read_checkpoint_bytes(self.store.storage, path)
        if data is None and self.store.storage.exists(path):
            self.findings.report(finding_kinds.CHECKPOINT_UNREADABLE, "it cannot be read", path)
            return
        latest_ms = max((check.latest_ms for check in checks), default=-1)
        log_end, has_sixth = job_scan.checked_log_end(checks), StoreLayout.FROM_5_4 in self.store.layouts
        for finding in checkpoint.check_checkpoint(data, size_bytes, path, latest_ms, log_end, has_sixth=has_sixth):
            (self.race_findings if finding.kind == finding_kinds.CHECKPOINT_LATER else self.findings).add(finding)

    def check_controller(self, segments: Sequence[Segment], facts: LogFacts) -> None:
        """Check the files of the controller mode against the log's readable files."""
        if StoreLayout.CONTROLLER not in self.store.layouts:
            return
        self.findings.extend(check_broker_identity(self.store))
        for finding in check_epochs(self.store, segments, facts):
            (self.race_findings if finding.kind is layout_finding_kinds.EPOCH_BEYOND else self.findings).add(finding)

    def _lacks_topics(self, texts: Mapping[str, str]) -> bool:
        """Return whether there is a config without ``topics.json``, and without topics in RocksDB."""
        is_elsewhere = "topics.json" in texts or StoreLayout.ROCKSDB_CONFIG in self.store.layouts
        return not is_elsewhere and self.store.storage.exists(paths.config_dir(self.store.root))

    def _read_topic_names(self, text: str | None, stored: RocksDbConfig) -> frozenset[str] | None:
        """Return the broker's topics; None without a readable list."""
        if StoreLayout.ROCKSDB_CONFIG in self.store.layouts:
            return stored.known_topics
        if text is not None:
            with suppress(DecodeError):
                return frozenset(topics_json.topic_names(text))
        return None

    def _report_unknown_topics(self, queues: QueuesByPartition, topic_names: frozenset[str]) -> None:
        database = self.store.layouts.queue_database
        for topic in sorted(set(queues.topics) - topic_names):
            if not topic.startswith(LIGHT_QUEUE_PREFIX):  # no table of topics has light queues
                path = database or f"{paths.consumequeue_dir(self.store.root)}/{topic}"
                self.findings.report(finding_kinds.TOPIC_UNKNOWN, "the topic has queues", path, topic=topic)
