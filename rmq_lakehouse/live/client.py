"""Blocking adapter of the project's client for the Spark source, which raises the package's own errors.

Only this module and ``administration`` import ``rmq_core``, as the client alone decodes brokers' responses.
"""

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_core.client.access import access_of, gather_settings
from rmq_core.client.bulk.pull import READER_GROUP, BulkPulled, BulkReader
from rmq_core.client.bulk.send import BulkSender, BulkUniqKeys
from rmq_core.client.errors import NoRouteError
from rmq_core.client.options import ClientOptions
from rmq_core.client.pull.request import PullStatus
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import RemotingError, ResponseError, TransportError
from rmq_core.remoting.loop import LoopRunner
from rmq_formats.codecs.topics import TEMPLATE_TOPIC
from rmq_formats.errors import ClusterError, NoTopicError, UnreachableError
from rmq_lakehouse.live.options import ClusterQueue, ClusterReadOptions, ClusterWriteOptions

_T = TypeVar("_T")
_Request = Callable[[], Coroutine[Any, Any, _T]]
_Options = TypeVar("_Options", ClusterReadOptions, ClusterWriteOptions)
_PAUSE_S: Final = 0.5  # between the attempts of a request
_log = logging.getLogger("rmq_formats.spark")
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


def resolve_access(options: _Options) -> _Options:
    """Read the files and environment variables of the access, in the driver, for tasks. Raises OptionError."""
    return replace(options, access=gather_access(options.access))


def gather_access(access: Mapping[str, str]) -> dict[str, str]:
    """Read the files and environment variables of an access; see ``resolve_access``. Raises OptionError."""
    settings = gather_settings(access, os.environ)
    access_of(settings)
    return settings


class ClusterConnection:
    """Consumer connection to a cluster: topics, offsets and pulls; a context manager.

    Each method raises ClusterError, in one line, if the cluster does not answer or refuses.
    """

    def __init__(
        self, namesrv: str, group: str | None, access: Mapping[str, str] = _NO_SETTINGS, patience_s: float = 0
    ) -> None:
        """Create a connection; later requests are repeated for ``patience_s`` where no server responds."""
        self._namesrv = namesrv
        self._patience_s = patience_s
        self._has_responded = False
        self._runner = LoopRunner()
        self._reader = BulkReader(namesrv, group or READER_GROUP, **access_arguments(access))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._reader.__aexit__())
        self._runner.close()

    def topics(self) -> list[str]:
        return self._request(self._reader.topics)

    def clusters(self) -> dict[str, str]:
        return self._request(self._reader.clusters)

    def queues(self, topic: str) -> list[ClusterQueue]:
        try:
            queues = self._request(partial(self._reader.queues, topic))
        except ClusterError as error:
            if isinstance(error.__cause__, NoRouteError):
                raise NoTopicError(f"no topic {topic!r} at the name server {self._namesrv}") from None
            raise
        return [ClusterQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]

    def bounds(self, queues: Iterable[ClusterQueue]) -> dict[ClusterQueue, tuple[int, int]]:
        async def bounds_of(queue: MessageQueue) -> tuple[int, int]:
            return await self._reader.offsets.min(queue), await self._reader.offsets.max(queue)

        return self._request_each({queue: partial(bounds_of, _message_queue(queue)) for queue in queues})

    def at_times(self, times_ms: Mapping[ClusterQueue, int]) -> dict[ClusterQueue, int]:
        search = self._reader.offsets.search
        return self._request_each(
            {queue: partial(search, _message_queue(queue), time) for queue, time in times_ms.items()}
        )

    def committed(self, queues: Iterable[ClusterQueue], group: str) -> dict[ClusterQueue, int | None]:
        committed = self._reader.offsets.committed
        return self._request_each({queue: partial(committed, _message_queue(queue), group) for queue in queues})

    def commit(self, offsets: Mapping[ClusterQueue, int], group: str) -> dict[ClusterQueue, str]:
        """Commit a consumer group's offsets; return the reason for each queue whose offset is not committed."""
        failures: dict[ClusterQueue, str] = {}

        async def commit_one(queue: ClusterQueue, offset: int) -> None:
            try:
                await self._reader.offsets.commit(_message_queue(queue), group, offset)
            except RemotingError as error:
                if isinstance(error, ResponseError) and error.code == ResponseCode.NO_PERMISSION:
                    raise
                failures[queue] = str(error)

        self._request_each({queue: partial(commit_one, queue, offset) for queue, offset in offsets.items()})
        return failures

    def read(
        self, queue: ClusterQueue, begin: int, end: int, tags: str, sql: str | None
    ) -> Iterator[tuple[list[bytes | memoryview], int | None]]:
        """Pull the records in a range of a queue, undecoded.

        Yields:
            Records, in pieces; and the offset before which messages were deleted, if the broker says so.
        """
        pulls = self._reader.read(_message_queue(queue), begin, end, tags, sql=sql)

        async def pull_next() -> list[BulkPulled] | None:
            return await anext(pulls, None)

        while (pulled := self._run(pull_next)) is not None:
            records = [pull.records for pull in pulled if pull.records]
            next_offsets = [pull.next_offset for pull in pulled if pull.status is PullStatus.OFFSET_ILLEGAL]
            yield records, next_offsets[-1] if next_offsets else None

    def _request_each(self, requests: Mapping[ClusterQueue, _Request[_T]]) -> dict[ClusterQueue, _T]:
        async def gather_responses() -> list[_T]:
            return await asyncio.gather(*(request() for request in requests.values()))

        return dict(zip(requests, self._request(gather_responses), strict=True))

    def _request(self, work: _Request[_T]) -> _T:
        """Do the requests of a plan, again and again within the patience where no server responds."""
        end_s = time.monotonic() + self._patience_s
        while True:
            try:
                response = self._run(work)
            except UnreachableError as error:
                if not self._has_responded or time.monotonic() >= end_s:
                    raise
                _log.warning("%s: trying again", error)
                time.sleep(_PAUSE_S)
                self._run(self._reader.refresh_routes)  # the broker may have another address by now
            else:
                self._has_responded = True
                return response

    def _run(self, work: _Request[_T]) -> _T:
        with translate_errors(self._namesrv):
            return self._runner.run(work())


class ClusterSink:
    """Producer connection to a cluster, at least once; a context manager. Each method raises ClusterError."""

    def __init__(
        self, namesrv: str, group: str, access: Mapping[str, str] = _NO_SETTINGS, batch_bytes: int = 256 << 10
    ) -> None:
        self._namesrv = namesrv
        self._runner = LoopRunner()
        with translate_errors(namesrv):
            self._sender = BulkSender(namesrv, group, batch_bytes=batch_bytes, **access_arguments(access))
        self._keys = BulkUniqKeys()
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._next_queue = random.randrange(1 << 16)  # random start, so that tasks begin with different queues

    def __enter__(self) -> "ClusterSink":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._sender.__aexit__())
        self._runner.close()

    @property
    def messages(self) -> int:
        return self._sender.messages

    def uniq_keys(self, count: int) -> NDArray[np.uint8]:
        """Generate unique keys, uint8[count, 32]."""
        return self._keys.next(count)

    def check(self, topic: str | None, patience_s: float = 0) -> None:
        """Check that the cluster responds, accepts this sender and has the topic (if not None).

        Args:
            patience_s: seconds in which the check is repeated where no server responds or knows the topic, as while a
                broker restarts.
        """
        end_s = time.monotonic() + patience_s
        while True:
            try:
                return self._check(topic)
            except (UnreachableError, NoTopicError) as error:
                if time.monotonic() >= end_s:
                    raise
                _log.warning("%s: trying again", error)
                time.sleep(_PAUSE_S)

    def _check(self, topic: str | None) -> None:
        if topic is not None:
            self.queues(topic)
        with translate_errors(self._namesrv):
            if topic is None:
                with contextlib.suppress(NoRouteError):
                    self._runner.run(self._sender.queues(TEMPLATE_TOPIC))
            self._runner.run(self._sender.check_access())

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """List the writable queues of a topic."""
        queues = self._queues.get(topic)
        if queues is None:
            with translate_errors(self._namesrv):
                try:
                    queues = self._queues[topic] = self._runner.run(self._sender.queues(topic))
                except NoRouteError as error:
                    raise NoTopicError(f"topic of the name server {self._namesrv}: {error.remark}") from None
        return queues

    def send(self, chunks: Iterable[tuple[str, str | None, int | None, memoryview, int, int]]) -> None:
        """Send messages, and wait until they are stored.

        Args:
            chunks: topic, broker and queue id (None leaves the choice), messages as a batch request carries them, their
                number, and the ``sys_flag`` of all of them.
        """
        queue_chunks = [
            (self._queue(topic, broker, number), data, count, sys_flag)
            for topic, broker, number, data, count, sys_flag in chunks
        ]

        async def put_all() -> None:
            for queue, data, count, sys_flag in queue_chunks:
                await self._sender.put(queue, data, count, sys_flag=sys_flag)
            await self._sender.flush()

        with translate_errors(self._namesrv):
            self._runner.run(put_all())

    def _queue(self, topic: str, broker: str | None, number: int | None) -> MessageQueue:
        writable_queues = [
            queue
            for queue in self.queues(topic)
            if broker in (None, queue.broker_name) and number in (None, queue.queue_id)
        ]
        if not writable_queues:
            name = f"{broker or 'any broker'}:{'any' if number is None else number}"
            raise ClusterError(f"topic {topic!r} at the name server {self._namesrv} has no queue {name} to write to")
        if number is not None:
            return writable_queues[0]  # one lane for all rows, so that they stay in order
        self._next_queue += 1
        return writable_queues[self._next_queue % len(writable_queues)]


def access_arguments(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a client that stand for an access; see ``gather_access``."""
    access = access_of(settings)
    return {"options": ClientOptions(tls=access.tls), "credentials": access.credentials}


@contextmanager
def translate_errors(namesrv: str) -> Iterator[None]:
    """Translate errors of the client to ClusterError."""
    try:
        yield
    except RemotingError as error:
        kind = UnreachableError if isinstance(error, TransportError) else ClusterError
        raise kind(f"cluster of the name server {namesrv}: {error}") from error


def _message_queue(queue: ClusterQueue) -> MessageQueue:
    return MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)
