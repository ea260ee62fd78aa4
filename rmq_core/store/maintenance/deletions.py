"""Deletes topics of an open store: removes the queues, and records the deletion for later recoveries.

Source: ``DefaultMessageStore#deleteTopics``.
"""

from collections.abc import Collection, Mapping

from rmq_core.store.commitlog.append import Appender
from rmq_core.store.consumequeue.deleted_topics import DeletedTopics
from rmq_core.store.maintenance.background import LACKS, Background
from rmq_core.store.maintenance.reput import LiveDispatch
from rmq_core.store.parts import StoreParts


class TopicDeletions:
    """Removes the queues of deleted topics. Their messages stay in the log until that is cleaned."""

    def __init__(
        self,
        parts: StoreParts,
        deleted_topics: DeletedTopics,
        appender: Appender,
        live: LiveDispatch,
        background: Background,
    ) -> None:
        """Delete topics of a store; ``deleted_topics`` records the deletions."""
        self._log = parts.log
        self._queues = parts.queues
        self._dispatch = parts.dispatch
        self._flusher = parts.flusher
        self._deleted_topics = deleted_topics
        self._appender = appender
        self._live = live
        self._background = background
        self._monotonic_s = parts.threads.monotonic_s
        self._begin = 0

    def begin(self) -> None:
        """Note where the log begins, as the store is opened: what is cleaned later may be there after a kill."""
        self._begin = self._log.min_offset

    def delete(self, topics: Collection[str], ends: Mapping[str, int]) -> int:
        """Remove the queues of topics; returns how many had any. ``MessageStore.remove_deleted`` removes their files.

        The log's end is noted for each topic. It is forced first: a note beyond what a loss of power leaves would
        count for nothing, in the place of an earlier one.

        Args:
            topics: their names.
            ends: physical offsets up to which records are dead, of topics that were created again meanwhile.

        Raises:
            OSError: the log cannot be forced, or the note not be written; no topic is deleted then.
        """
        if not self._flusher.flush() and self._flusher.fault is not None:
            raise self._flusher.fault
        self._live.run()
        return self.drop({**dict.fromkeys(topics, self._log.max_offset), **ends})

    def drop(self, ends: Mapping[str, int], *, at_least: bool = False) -> int:
        """Remove the queues of topics that were deleted when the log ended at some offset; returns of how many topics.

        The queues' files are left to ``MessageStore.remove_deleted``.

        Args:
            ends: these physical offsets, by topic. The log may go further, or not be there yet, at a slave.
            at_least: they may have been deleted later, and what a queue has after that is dead as well.

        Raises:
            OSError: the note cannot be written; no topic is deleted then.
        """
        if at_least:
            ends = {topic: self._queues.dead_until(topic, end) for topic, end in ends.items()}
        try:
            if not self._deleted_topics.note(ends, self._begin):
                return 0
        except OSError as error:
            if error.errno not in LACKS:  # the note may be there: at the next start, what came now would be dead
                self._flusher.fail(error)
            raise
        self._dispatch.writer.clear_cache()
        removed = self._queues.remove_topics(ends, self._dispatch.offset)
        self._appender.evict_queues(ends.keys())
        self._dispatch.note()
        self._background.request_flush()
        return removed

    def remove_files(self, seconds: float) -> bool:
        """Remove files of the queues of deleted topics, for so long at most.

        Returns:
            Whether some are left, as a topic may have had many queues.

        Raises:
            OSError: one cannot be removed.
        """
        end_s = self._monotonic_s() + seconds
        return self._queues.remove_files(lambda: self._monotonic_s() > end_s)
