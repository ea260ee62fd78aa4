"""All ConsumeQueues of a store."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_core.store.disk import Disk
from rmq_core.store.queue import ConsumeQueue
from rmq_core.store.queue_ext import QueueExt
from rmq_core.store.queue_files import OpenFiles
from rmq_core.store.queue_start import load_queue
from rmq_formats import paths
from rmq_formats.errors import FormatError


class QueueTable:
    """The queues by topic and id.

    Attributes:
        open_files: descriptors of all queues' files.
        unit_total: sum of the queues' maximum offsets.
        is_ext: units have addresses in ConsumeQueueExt instead of tags codes.
    """

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.open_files = OpenFiles(disk)
        self.unit_total = 0
        self._config = config
        self._disk = disk
        self._directory = paths.consumequeue_dir(config.root)
        self._ext_directory = paths.consumequeue_ext_dir(config.root)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.is_ext = config.consumequeue_ext_enabled
        self._foreign = frozenset(_names(f"{config.root}/batchconsumequeue"))

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def is_foreign(self, topic: str) -> bool:
        """Whether a topic's queues are of another kind: a BatchConsumeQueue of the original.

        This store leaves those as they are; to give such a topic a plain ConsumeQueue would keep the
        original from starting (``ConsumeQueueStore#queueTypeShouldBe``).
        """
        return topic in self._foreign

    def load(self, known_until: int | None) -> None:
        """Find the queues that are there; see ``load_queue``.

        Raises:
            StoreSizeError: a file of another size than this store's.
        """
        for topic in _names(self._directory):
            for name in _names(f"{self._directory}/{topic}"):
                if name.isascii() and name.isdigit() and str(int(name)) == name:
                    queue = self._make(topic, int(name))
                    load_queue(queue, known_until)
                    if queue.files.files:
                        self._queues[topic, int(name)] = queue
        self.count_units()

    def count_units(self) -> None:
        """Add up the queues anew."""
        self.unit_total = sum(queue.max_offset for queue in self)

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        config = self._config
        directory = paths.queue_dir(self._directory, topic, queue_id)
        ext_directory = paths.queue_dir(self._ext_directory, topic, queue_id)
        ext = None
        if self.is_ext or Path(ext_directory).is_dir():
            ext = QueueExt(ext_directory, config.consumequeue_ext_file_bytes, self.open_files)
        return ConsumeQueue(topic, queue_id, directory, config.consumequeue_file_bytes, self.open_files, ext)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue; None if it has no unit yet."""
        return self._queues.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue, made if it is not there.

        Raises:
            FormatError: the topic cannot name a directory.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise FormatError(f"queue id {queue_id} cannot name a directory")
            queue = self._queues[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of a queue's next message."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else max(queue.max_offset, queue.least_next)

    def topics(self) -> dict[str, list[int]]:
        """The topics that have queues, and the ids of these."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in self._queues:
            found.setdefault(topic, []).append(queue_id)
        return found

    def remove_topics(self, topics: Iterable[str]) -> int:
        """Remove the queues of topics; how many topics had any."""
        wanted = set(topics)
        removed = set()
        for topic, queue_id in [key for key in self._queues if key[0] in wanted]:
            queue = self._queues.pop((topic, queue_id))
            queue.bind(None)
            queue.files.clear()
            if queue.ext is not None:
                queue.ext.files.clear()
            removed.add(topic)
        for parent in (self._directory, self._ext_directory):
            for directory in [Path(parent) / topic for topic in removed]:
                if directory.is_dir() and not any(directory.iterdir()):
                    directory.rmdir()
        if removed:
            self.open_files.new_directories.append(self._directory)
            self.count_units()
        return len(removed)

    def clear(self) -> None:
        """Remove all queues."""
        self.remove_topics(list(self.topics()))

    @property
    def is_whole(self) -> bool:
        """Whether no queue was found with a file missing."""
        return all(queue.is_whole for queue in self)

    def last_end(self) -> int:
        """The largest physical offset behind a record that has a unit; -1 if none has."""
        return max((queue.last_end() for queue in self), default=-1)

    def close(self) -> None:
        """Close all files."""
        self.open_files.close_all()


def _names(directory: str) -> list[str]:
    path = Path(directory)
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
