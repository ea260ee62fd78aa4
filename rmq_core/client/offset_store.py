"""Where a push consumer keeps its offsets: at the brokers (clustering), or in a file of its own (broadcasting).

Source: ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from rmq_core.client.queue_offsets import QueueOffsets
from rmq_core.remoting.bodies import MessageQueue, decode_body, encode_for_fastjson, parse_queue_key, queue_key
from rmq_core.remoting.bodies import QueueOffsets as OffsetsBody
from rmq_core.remoting.errors import RemotingError
from rmq_formats.errors import FormatError, StoreError

log = logging.getLogger("rmq.client")


class OffsetStore(Protocol):
    """Offsets by queue, in memory and where they last."""

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        """Take note of an offset; ``only_up``: a lower one than before does not count."""

    def known(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset where it lasts; it is in memory too from now on."""

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop an offset from memory."""


class _Memory:
    """What both stores have in memory."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        known = self.offsets.get(queue)
        if known is None or not only_up or offset > known:
            self.offsets[queue] = offset

    def known(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self.offsets.pop(queue, None)


class RemoteOffsets(_Memory):
    """Offsets at the brokers, under the group's name."""

    def __init__(self, group: str, brokers: QueueOffsets) -> None:
        super().__init__()
        self._group = group
        self._brokers = brokers

    async def read(self, queue: MessageQueue) -> int | None:
        """Ask the broker; raises as ``QueueOffsets.committed``."""
        offset = await self._brokers.committed(queue, self._group)
        if offset is not None:
            self.update(queue, offset, only_up=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Tell the brokers; one that cannot be told is told the next time."""
        for queue in queues:
            offset = self.known(queue)
            if offset is None:
                continue
            try:
                await self._brokers.commit(queue, self._group, offset)
            except RemotingError as error:
                log.warning("the offset of %s is not stored: %s", queue, error)


class LocalOffsets(_Memory):
    """Offsets in ``offsets.json``, as Java's consumers write and read it."""

    def __init__(self, path: Path) -> None:
        """Prepare.

        Args:
            path: of the file; ``.bak`` beside it is the state before.
        """
        super().__init__()
        self._path = path

    async def read(self, queue: MessageQueue) -> int | None:
        """Look into the file.

        Raises:
            StoreError: neither it nor the state before can be read.
        """
        offset = self._load().get(queue)
        if offset is not None:
            self.update(queue, offset, only_up=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Write the file anew; offsets of other queues in it stay.

        Raises:
            StoreError: it cannot be read or written.
        """
        offsets = self._load() | {queue: self.offsets[queue] for queue in queues if queue in self.offsets}
        body = OffsetsBody(offset_table={queue_key(queue): offset for queue, offset in offsets.items()})
        temporary, backup = self._beside(".tmp"), self._beside(".bak")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(encode_for_fastjson(body))
            if self._path.exists():
                backup.write_bytes(self._path.read_bytes())
            temporary.replace(self._path)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _load(self) -> dict[MessageQueue, int]:
        """The offsets in the file, or in the one before where it is damaged; none where there is neither."""
        failed: Exception | None = None
        for path in (self._path, self._beside(".bak")):
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
            raise StoreError(f"{self._path}: the offsets cannot be read: {failed}")
        return {}
