"""Answers that promise a message: given once it is flushed, replicated and its topic's name written, as it has to be.

Source: ``SendMessageProcessor#handlePutMessageResult``, ``CommitLog#handleDiskFlushAndHA``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.names import RETRY_PREFIX
from rmq_core.broker.tables.pending_changes import WrittenTable
from rmq_core.broker.tables.table_file import TableFile
from rmq_core.broker.tables.waiters import DiskWaiters
from rmq_core.remoting.answers import awaited, drop
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.results import PutResult, PutStatus

_WRITE_TIMEOUT_S: Final = 5.0


class Acknowledgements:
    """Answers once what they promise is safe.

    Attributes:
        must_wait: whether messages have to be forced or replicated before their answer.
    """

    def __init__(self, state: BrokerState, waiters: DiskWaiters, failure: Callable[[PutStatus], ResponseError]) -> None:
        """Use ``failure`` for the error response where the disk is broken."""
        self.must_wait = waiters.is_sync or state.replication.needs_slaves
        self._state = state
        self._waiters = waiters
        self._failure = failure

    def is_named(self, topic: str) -> bool:
        """Whether the file of topics has a topic, and the dead-letter topic that its messages may go to."""
        unwritten = self._state.topics.unwritten
        return not unwritten or (topic not in unwritten and not topic.startswith(RETRY_PREFIX))

    def when_safe(
        self, request: RemotingCommand, answer: RemotingCommand, result: PutResult, *, waits: bool = True
    ) -> Awaitable[RemotingCommand]:
        """The answer once a message, and the names of all topics that exist now, are safe.

        Args:
            request: that it answers.
            answer: if all goes well.
            result: of the message's append, which went well.
            waits: whether the message has to be flushed and replicated.
        """
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        def safe(answer: RemotingCommand) -> None:
            if not future.done():  # else its connection has ended
                future.set_result(answer)

        if waits:
            self.tell(request, answer, result, safe)
        else:
            safe(answer)
        return self._named(future) if self._state.topics.unwritten else future

    def tell(
        self,
        request: RemotingCommand,
        answer: RemotingCommand,
        result: PutResult,
        safe: Callable[[RemotingCommand], None],
    ) -> None:
        """Runs a callback with the answer once the message is flushed and replicated as it has to be."""
        request.fields, request.body = {}, b""  # they would keep the receive buffer until the disk has answered

        def replicated(in_time: bool) -> None:
            if not in_time:
                answer.code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
            safe(answer)

        def forced(on_disk: bool) -> None:
            if on_disk and self._state.replication.needs_slaves:
                self._state.replication.wait(result, replicated)
            else:
                safe(answer if on_disk else self._unforced(request, answer))

        if self._waiters.is_sync:
            self._waiters.add(result, forced)
        else:
            forced(on_disk=True)

    async def _named(self, safe: Awaitable[RemotingCommand]) -> RemotingCommand:
        answer = await safe
        if not await self._state.topics.file.is_written(_WRITE_TIMEOUT_S):
            answer.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
        return answer

    def _unforced(self, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        """The answer to a message that was not flushed in time: late is not lost, unless the disk is broken."""
        if self._state.store.fault is None:
            answer.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            return answer
        error = self._failure(PutStatus.SERVICE_NOT_AVAILABLE)
        return request.response(error.code, error.remark)


def after_write(handler: Handler, table: WrittenTable) -> Handler:
    """Wrap a handler: if it has changed a table, its answer waits until the table's file has the change.

    A change that cannot be written is taken back: it would be in force until the next start, and not after it.
    """

    def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        before = table.file.changes
        answer = handler(request, connection)
        after = table.file.changes
        if after == before:
            return answer
        table.file.when_written(lambda is_written: None if is_written else table.take_back(before, after))
        return _when_written(request, answer, table.file)

    return handle


async def _when_written(request: RemotingCommand, answer: HandlerAnswer, file: TableFile) -> RemotingCommand | None:
    try:
        if await file.is_written(_WRITE_TIMEOUT_S):
            return await awaited(answer)
    finally:
        drop(answer)
    why = file.fault or "the disk takes too long"
    return request.response(int(ResponseCode.SYSTEM_ERROR), f"{file.name} cannot be written: {why}")
