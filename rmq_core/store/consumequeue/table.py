"""All ConsumeQueues and BatchConsumeQueues of a store, by topic and queue id."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.batch_queue import BatchQueue, NewUnit
from rmq_core.store.consumequeue.ext import QueueExt
from rmq_core.store.consumequeue.files import OpenFiles
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.files.config_files import DeletedTopics
from rmq_core.store.files.disk import Disk
from rmq_core.store.results import StoredUnit
from rmq_formats.codecs import paths
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.errors import FormatError

Queue = ConsumeQueue | BatchQueue


class ConsumeQueueTable:
    """The queues of a store, by topic and queue id.

    Attributes:
        open_files: descriptors of all queues' files.
        unit_total: sum of the queues' max offsets.
        writes_ext: new units hold addresses in ConsumeQueueExt instead of tags codes.
    """

    def __init__(
        self, config: StoreConfig, disk: Disk, deleted_topics: DeletedTopics, batch_topics: Collection[str]
    ) -> None:
        self.batch_topics = frozenset(batch_topics)
        self.deleted_topics = deleted_topics
        self.open_files = OpenFiles(disk)
        self.unit_total = 0
        self._config = config
        self._directory = paths.consumequeue_dir(config.root)
        self._ext_directory = paths.consumequeue_ext_dir(config.root)
        self._batch_directory = paths.batch_consumequeue_dir(config.root)
        self._has_wrong_kind = False  # a queue's kind (plain or batch) was not its topic's
        self._queues: dict[tuple[str, int], Queue] = {}
        self._deleted_queues: dict[str, dict[int, Queue]] = {}  # removed queues whose files remain, by topic
        self.writes_ext = config.consumequeue_ext_enabled

    @property
    def has_topic_list(self) -> bool:
        """True if the store has a list of its topics: a topic without an entry was deleted, or is new."""
        directory = Path(paths.config_dir(self._config.root))
        return any((directory / name).exists() for name in ("topics.json", "topics.json.bak"))

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def load(self, sound_until: int | None) -> None:
        """Open the existing queues, and find their ends; see ``ConsumeQueue.load``.

        A queue whose kind (plain or batch) is not its topic's is removed, and the table is not whole then: a slave may
        have received messages before their topic's config.
        """
        for directory in (self._directory, self._batch_directory):
            for topic in _list_directories(directory):
                for name in _list_directories(f"{directory}/{topic}"):
                    if name.isascii() and name.isdigit() and str(int(name)) == name:
                        self._load(topic, int(name), sound_until, is_batch=directory is self._batch_directory)
        self.remove_topics(self.deleted_topics.ends)  # a crash may have come before their removal
        self.remove_files()
        self.count_units()

    def _load(self, topic: str, queue_id: int, sound_until: int | None, *, is_batch: bool) -> None:
        queue = self._make(topic, queue_id, is_batch=is_batch)
        queue.load(sound_until)
        if not queue.files.files:
            return
        if is_batch == (topic in self.batch_topics):
            self._queues[topic, queue_id] = queue
        else:
            self._has_wrong_kind = True
            self._remove_queue_files(queue)
            self._remove_directories(topic)

    def count_units(self) -> None:
        """Recompute ``unit_total``."""
        self.unit_total = sum(queue.max_offset for queue in self)

    def _make(self, topic: str, queue_id: int, *, is_batch: bool) -> Queue:
        config = self._config
        directory = paths.queue_dir(self._batch_directory if is_batch else self._directory, topic, queue_id)
        if is_batch:
            return BatchQueue(topic, queue_id, directory, config.batchconsumequeue_file_bytes, self.open_files)
        ext_directory = paths.queue_dir(self._ext_directory, topic, queue_id)
        ext = None
        if self.writes_ext or Path(ext_directory).is_dir():
            ext = QueueExt(ext_directory, config.consumequeue_ext_file_bytes, self.open_files)
        return ConsumeQueue(topic, queue_id, directory, config.consumequeue_file_bytes, self.open_files, ext)

    def get(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if the queue has no unit yet."""
        return self._queues.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> Queue:
        """Return a queue, created if it does not exist; raise FormatError if its topic cannot name a directory."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if topic in self._deleted_queues:
                self._remove_files_of(topic, queue_id)
            if queue_id < 0:
                raise FormatError(f"queue id {queue_id} cannot name a directory")
            queue = self._make(topic, queue_id, is_batch=topic in self.batch_topics)
            if queue.ext is not None:  # a crash may have left files of ConsumeQueueExt without files of the queue
                queue.ext.load(None)
            self._queues[topic, queue_id] = queue
        return queue

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of a queue's next message."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else max(queue.max_offset, queue.least_next)

    def topics(self) -> dict[str, list[int]]:
        """Queue ids by topic."""
        queue_ids: dict[str, list[int]] = {}
        for topic, queue_id in self._queues:
            queue_ids.setdefault(topic, []).append(queue_id)
        return queue_ids

    def remove_topics(self, ends: Mapping[str, int], all_end: int = MAX_LONG) -> int:
        """Remove the queues of topics without records after a physical offset; return the number of topics.

        The files, of which there may be many, remain until ``remove_files`` is called or the queue is created again.
        Units after the offset belong to a new topic of the same name and remain. The first messages of the new topic
        may have been lost in a power failure of the master, so that the next ones continue the old queue.

        Args:
            all_end: physical offset after all records with units, so that no queue is read if all records are dead.
        """
        removed = set()
        for (topic, queue_id), queue in list(self._queues.items()):
            if topic not in ends:
                continue
            if ends[topic] < all_end:  # else no unit is after the offset
                if queue.first_physical() >= ends[topic]:
                    continue
                if queue.last_end() > ends[topic]:
                    queue.remove_before(ends[topic])
                    continue
            del self._queues[topic, queue_id]
            queue.bind(None)
            queue.files.cancel_fsync()
            if queue.ext is not None:
                queue.ext.files.cancel_fsync()
            self._deleted_queues.setdefault(topic, {})[queue_id] = queue
            removed.add(topic)
        if removed:
            self.count_units()
        return len(removed)

    def remove_files(self, is_time_over: Callable[[], bool] | None = None) -> bool:
        """Remove the files of removed queues, until an OSError or ``is_time_over``; return whether files remain."""
        while self._deleted_queues:
            topic = next(iter(self._deleted_queues))
            queues = self._deleted_queues[topic]
            while queues:
                if is_time_over is not None and is_time_over():
                    return True
                self._remove_files_of(topic, next(reversed(queues)))
            self._remove_directories(topic)
            del self._deleted_queues[topic]
        return False

    def _remove_files_of(self, topic: str, queue_id: int) -> None:
        queue = self._deleted_queues[topic].get(queue_id)
        if queue is not None:
            self._remove_queue_files(queue)
            del self._deleted_queues[topic][queue_id]

    @staticmethod
    def _remove_queue_files(queue: Queue) -> None:
        queue.files.clear()
        if queue.ext is not None:
            queue.ext.files.clear()

    def _remove_directories(self, topic: str) -> None:
        for parent in (self._directory, self._ext_directory, self._batch_directory):
            directory = Path(parent) / topic
            if directory.is_dir() and not any(directory.iterdir()):
                self.open_files.disk.remove_directory(str(directory))
        for parent in (self._directory, self._batch_directory):  # these directories have lost entries
            self.open_files.new_directories.extend([f"{parent}/{topic}", parent])

    def extend_dead_end(self, topic: str, end: int) -> int:
        """Extend the end of a deleted topic's records to the ends of all queues with an earlier record."""
        queues = [queue for queue in self if queue.topic == topic]
        while True:
            extended_end = max([end, *(queue.last_end() for queue in queues if queue.first_physical() < end)])
            if extended_end == end:
                return end
            end = extended_end

    def clear(self) -> None:
        """Remove all queues."""
        self.remove_topics(dict.fromkeys(self.topics(), MAX_LONG))
        self.remove_files()

    @property
    def is_whole(self) -> bool:
        """True if no queue lacked a file or had another kind (plain or batch) than its topic."""
        return not self._has_wrong_kind and all(queue.is_whole for queue in self)

    def set_batch_topics(self, topics: Collection[str]) -> bool:
        """Set the topics with BatchConsumeQueues, and add those with such queues; return whether one has plain queues.

        That happens on a slave, which may have received messages before their topic's config.
        """
        if topics == self.batch_topics:
            return False
        self.batch_topics = frozenset(topics).union(queue.topic for queue in self if isinstance(queue, BatchQueue))
        return any(isinstance(queue, ConsumeQueue) and queue.topic in self.batch_topics for queue in self)

    def make_batch_queues(self, make_batch_unit: Callable[[StoredUnit], NewUnit | None]) -> None:
        """Replace the plain queues of topics in ``batch_topics`` with BatchConsumeQueues.

        Args:
            make_batch_unit: makes a record's batch unit from its plain unit; None if the log lacks the record.
        """
        try:
            for key, plain in list(self._queues.items()):
                if key[0] in self.batch_topics and isinstance(plain, ConsumeQueue):
                    self._make_batch_queue(plain, make_batch_unit)
        except OSError:
            self.batch_topics -= {queue.topic for queue in self if isinstance(queue, ConsumeQueue)}
            raise
        finally:
            self.count_units()

    def _make_batch_queue(self, plain: ConsumeQueue, make_batch_unit: Callable[[StoredUnit], NewUnit | None]) -> None:
        queue = self._make(plain.topic, plain.queue_id, is_batch=True)
        assert isinstance(queue, BatchQueue)
        queue.files.load()  # files of an earlier attempt that failed
        queue.files.clear()
        plain.bind(None)
        queue.append(unit for plain_unit in plain.all_units() if (unit := make_batch_unit(plain_unit)) is not None)
        self._queues[plain.topic, plain.queue_id] = queue
        self._remove_queue_files(plain)
        self._remove_directories(plain.topic)

    def last_end(self) -> int:
        """Return the largest physical offset after a record that has a unit; -1 without units."""
        return max((queue.last_end() for queue in self), default=-1)


def _list_directories(directory: str) -> list[str]:
    path = Path(directory)
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
