"""All ConsumeQueues of a store, by topic and queue id."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.dropped import DroppedTopics
from rmq_core.store.consumequeue.ext import QueueExt
from rmq_core.store.consumequeue.files import OpenFiles
from rmq_core.store.consumequeue.find_end import load_queue
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.errors import FormatError


class ConsumeQueueTable:
    """The ConsumeQueues of a store, by topic and queue id.

    Attributes:
        dropped: topics that were deleted.
        open_files: descriptors of all queues' files.
        unit_total: sum of the queues' maximum offsets.
        is_ext: new units hold addresses in ConsumeQueueExt instead of tags codes.
    """

    def __init__(self, config: StoreConfig, disk: Disk, dropped: DroppedTopics) -> None:
        self.dropped = dropped
        self.open_files = OpenFiles(disk)
        self.unit_total = 0
        self._config = config
        self._disk = disk
        self._directory = paths.consumequeue_dir(config.root)
        self._ext_directory = paths.consumequeue_ext_dir(config.root)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._dropped_queues: dict[str, dict[int, ConsumeQueue]] = {}  # whose files are there still, by topic
        self.is_ext = config.consumequeue_ext_enabled

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def load(self, known_until: int | None) -> None:
        """Open the existing queues, and find their ends; see ``load_queue``.

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
        self.remove_topics(self.dropped.ends)  # where a crash came in between
        self.remove_files()
        self.count_units()

    def count_units(self) -> None:
        """Add up ``unit_total`` anew."""
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
        """A queue, created if it does not exist.

        Raises:
            FormatError: the topic cannot name a directory.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if topic in self._dropped_queues:
                self._remove_files_of(topic, queue_id)
            if queue_id < 0:
                raise FormatError(f"queue id {queue_id} cannot name a directory")
            queue = self._make(topic, queue_id)
            if queue.ext is not None:  # a crash may have left files of it, and none of the queue
                queue.ext.load(None)
            self._queues[topic, queue_id] = queue
        return queue

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of a queue's next message."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else max(queue.max_offset, queue.least_next)

    def topics(self) -> dict[str, list[int]]:
        """Topics that have queues, and their queue ids."""
        found: dict[str, list[int]] = {}
        for topic, queue_id in self._queues:
            found.setdefault(topic, []).append(queue_id)
        return found

    def remove_topics(self, ends: Mapping[str, int], all_end: int = MAX_LONG) -> int:
        """Remove the queues of topics that have a record before a physical offset, or none; returns of how many topics.

        Their files stay until ``remove_files`` comes to them, or a queue is made in their place: there may be many.

        Args:
            ends: these offsets, by topic. What a queue has behind that is of the same deleted topic: else the queue
                would have begun at 0 again.
            all_end: a physical offset that no record with a unit is behind: queues need not be read where all go.
        """
        removed = set()
        for key in [key for key in self._queues if key[0] in ends]:
            topic, queue_id = key
            if ends[topic] < all_end and self._queues[key].first_physical() >= ends[topic]:
                continue
            queue = self._queues.pop(key)
            queue.bind(None)
            queue.files.drop()
            if queue.ext is not None:
                queue.ext.files.drop()
            self._dropped_queues.setdefault(topic, {})[queue_id] = queue
            removed.add(topic)
        if removed:
            self.count_units()
        return len(removed)

    def remove_files(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Remove the files of removed queues.

        Args:
            is_over: tells when to end; None is to go on to the last.

        Returns:
            Whether some are left.

        Raises:
            OSError: one cannot be removed; the rest is left.
        """
        while self._dropped_queues:
            topic = next(iter(self._dropped_queues))
            queues = self._dropped_queues[topic]
            while queues:
                if is_over is not None and is_over():
                    return True
                self._remove_files_of(topic, next(reversed(queues)))
            self._remove_directories(topic)
            del self._dropped_queues[topic]
        return False

    def _remove_files_of(self, topic: str, queue_id: int) -> None:
        queue = self._dropped_queues[topic].get(queue_id)
        if queue is None:
            return
        queue.files.clear()
        if queue.ext is not None:
            queue.ext.files.clear()
        del self._dropped_queues[topic][queue_id]

    def _remove_directories(self, topic: str) -> None:
        for parent in (self._directory, self._ext_directory):
            directory = Path(parent) / topic
            if directory.is_dir() and not any(directory.iterdir()):
                self._disk.remove_directory(str(directory))
        self.open_files.new_directories.extend([f"{self._directory}/{topic}", self._directory])  # have names less now

    def dead_until(self, topic: str, end: int) -> int:
        """Up to where a topic's records are dead, at least, if those before a physical offset are."""
        queues = [queue for queue in self if queue.topic == topic]
        while True:
            further = max([end, *(queue.last_end() for queue in queues if queue.first_physical() < end)])
            if further == end:
                return end
            end = further

    def clear(self) -> None:
        """Remove all queues."""
        self.remove_topics(dict.fromkeys(self.topics(), MAX_LONG))
        self.remove_files()

    @property
    def is_whole(self) -> bool:
        """Whether no queue was found with a file missing."""
        return all(queue.is_whole for queue in self)

    def last_end(self) -> int:
        """The largest physical offset behind a record that has a unit; -1 without units."""
        return max((queue.last_end() for queue in self), default=-1)

    def close(self) -> None:
        """Close all files."""
        self.open_files.close_all()


def _names(directory: str) -> list[str]:
    path = Path(directory)
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
