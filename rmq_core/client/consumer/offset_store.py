"""The offset store of a push consumer: offsets at the brokers (clustering), or in a local file (broadcasting).

Source: ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from rmq_core.client.pull.request import QueueOffsets
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body, parse_queue_key, queue_key
from rmq_core.remoting.bodies.stats import OffsetsBody
from rmq_core.remoting.errors import RemotingError, TransportError
from rmq_formats.errors import FormatError, StoreError

log = logging.getLogger("rmq.client")


class OffsetStore(ABC):
    """Consumer offsets by queue, in memory and persisted."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        """Set the offset in memory; ``only_up`` ignores an offset lower than the current offset."""
        current = self.offsets.get(queue)
        if current is None or not only_up or offset > current:
            self.offsets[queue] = offset

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        return self.offsets.get(queue)

    def evict(self, queue: MessageQueue) -> None:
        """Evict the offset of a queue from memory."""
        self.offsets.pop(queue, None)

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """Read the persisted offset, and cache the offset in memory."""

    @abstractmethod
    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Persist the offsets of these queues."""


class RemoteOffsets(OffsetStore):
    """Offsets persisted at the brokers, under the group's name."""

    def __init__(self, group: str, brokers: QueueOffsets) -> None:
        super().__init__()
        self._group = group
        self._brokers = brokers
        # Java's broker may lose one of two concurrent first offsets of a group and topic: it gets one commit at a time.
        self._one_commit: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker name

    async def read(self, queue: MessageQueue) -> int | None:
        """Query the broker; raises as ``QueueOffsets.committed``."""
        offset = await self._brokers.committed(queue, self._group)
        if offset is not None:
            self.update(queue, offset, only_up=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Commit to the brokers; an unreachable broker gets its offsets with the next commit."""
        by_broker: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        await asyncio.gather(*(self._persist_at(name, queues) for name, queues in by_broker.items()))

    async def _persist_at(self, broker_name: str, queues: list[MessageQueue]) -> None:
        """Commit to one broker; stop at the first request without a response."""
        for queue in queues:
            offset = self.get(queue)
            if offset is None:
                continue
            try:
                async with self._one_commit[broker_name]:
                    await self._brokers.commit(queue, self._group, offset)
            except RemotingError as error:
                log.warning("cannot commit the offset of %s: %s", queue, error)
                if isinstance(error, TransportError):
                    return


class LocalOffsets(OffsetStore):
    """Offsets persisted in ``offsets.json``, in the format of Java's consumers."""

    def __init__(self, path: Path) -> None:
        """Create the store of a file; its ``.bak`` has the previous state."""
        super().__init__()
        self._path = path

    async def read(self, queue: MessageQueue) -> int | None:
        """Read the offset from the file. Raises StoreError if neither the file nor its backup can be read."""
        offset = self._load().get(queue)
        if offset is not None:
            self.update(queue, offset, only_up=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Rewrite the file; offsets of other queues remain. Raises StoreError."""
        offsets = self._load() | {queue: self.offsets[queue] for queue in queues if queue in self.offsets}
        body = OffsetsBody(offset_table={queue_key(queue): offset for queue, offset in offsets.items()})
        temporary, backup = self._sibling_path(".tmp"), self._sibling_path(".bak")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(encode_body(body))
            if self._path.exists():
                backup.write_bytes(self._path.read_bytes())
            temporary.replace(self._path)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def _sibling_path(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _load(self) -> dict[MessageQueue, int]:
        """Load the offsets of the file, or of its backup if the file is damaged; none without both."""
        failed: Exception | None = None
        for path in (self._path, self._sibling_path(".bak")):
            try:
                data = path.read_bytes()
                if data:
                    table = decode_body(data, OffsetsBody).offset_table
                    return {parse_queue_key(key): offset for key, offset in table.items()}
            except FileNotFoundError:
                continue
            except (OSError, FormatError) as error:
                log.warning("%s: %s", path, error)
                failed = error
        if failed is not None:
            raise StoreError(f"{self._path}: cannot be read as offsets: {failed}")
        return {}
