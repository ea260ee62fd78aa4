"""Lists the files of queues in ``consumequeue/TOPIC/QUEUE``, and likewise in ``consumequeue_ext``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.storage.segments import Entry, Segment, Storage, list_segments
from rmq_formats.storage.store_files import StoreFiles


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """One queue's files, by offset; at least one."""

    topic: str
    queue_id: int
    segments: tuple[Segment, ...]

    @property
    def first_offset(self) -> int:
        """Queue offset of the first place in the files of a ConsumeQueue."""
        return self.segments[0].start_offset // UNIT_BYTES


def queue_topics(storage: Storage, directory: str) -> list[str]:
    """List the topics that have a directory in ``consumequeue`` or ``consumequeue_ext``."""
    return _directories(storage.entries, directory)


def named_topics(store: StoreFiles) -> list[str]:
    """List the topics with a directory in ``consumequeue`` or ``batchconsumequeue``."""
    trees = (paths.consumequeue_dir(store.root), paths.batch_consumequeue_dir(store.root))
    return sorted({topic for tree in trees for topic in queue_topics(store.storage, tree)})


def topic_queues(storage: Storage, directory: str, topic: str) -> Iterator[QueueFiles]:
    """Yield the queues of a topic that have files, by number; directories of other names are passed over."""
    names = _directories(storage.entries, f"{directory}/{topic}") if paths.is_safe_topic(topic) else []
    numbered = [(queue_id, name) for name in names if (queue_id := paths.parse_queue_id(name)) is not None]
    for queue_id, name in sorted(numbered):
        segments = list_segments(storage, f"{directory}/{topic}/{name}")
        if segments:
            yield QueueFiles(topic, queue_id, tuple(segments))


def list_queue(storage: Storage, directory: str, topic: str, queue_id: int) -> QueueFiles | None:
    """List the files of one queue; None if it has none."""
    if not paths.is_safe_topic(topic):
        return None
    segments = list_segments(storage, paths.queue_dir(directory, topic, queue_id))
    return QueueFiles(topic, queue_id, tuple(segments)) if segments else None


def walk_queues(storage: Storage, directory: str) -> Iterator[QueueFiles]:
    """Yield the queues that have files in ``consumequeue`` or ``consumequeue_ext``, by topic and number."""
    for topic in queue_topics(storage, directory):
        yield from topic_queues(storage, directory, topic)


def queue_directories(entries: Callable[[str], list[Entry]], directory: str) -> Iterator[tuple[str, str]]:
    """Yield topic and name of each directory that may have a queue's files; ``entries`` lists a directory."""
    for topic in _directories(entries, directory):
        for name in _directories(entries, f"{directory}/{topic}"):
            yield topic, name


def _directories(entries: Callable[[str], list[Entry]], directory: str) -> list[str]:
    return [entry.name for entry in entries(directory) if entry.is_directory]
