"""Responses that promise a message: sent after its flush, its replication and the write of its topic.

Source: ``SendMessageProcessor#handlePutMessageResult``, ``CommitLog#handleDiskFlushAndHA``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rmq_core.broker.replication import DiskWaiters
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.names import RETRY_PREFIX
from rmq_core.broker.tables.table_file import TableFile, WrittenTable
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerResponse, await_response, close_response
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.results import PutResult, PutStatus

_WRITE_TIMEOUT_S: Final = 5.0


class DurableResponder:
    """Delay of responses until messages are durable; ``must_wait`` is True with flush or replication."""

    def __init__(self, state: BrokerState, waiters: DiskWaiters, failure: Callable[[PutStatus], ResponseError]) -> None:
        """Use ``failure`` for the error response while the disk is broken."""
        self.must_wait = waiters.is_sync or state.replication.needs_slaves
        self._state = state
        self._waiters = waiters
        self._failure = failure

    def is_topic_persisted(self, topic: str) -> bool:
        """Return whether the file of topics has a topic, and the dead-letter topic of its messages."""
        unwritten = self._state.topics.unwritten
        return not unwritten or (topic not in unwritten and not topic.startswith(RETRY_PREFIX))

    def respond_when_durable(
        self, request: RemotingCommand, response: RemotingCommand, result: PutResult, *, waits: bool = True
    ) -> Awaitable[RemotingCommand]:
        """Return the response once all current topics and, if ``waits``, a message are durable."""
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        def set_response(response: RemotingCommand) -> None:
            if not future.done():  # else the connection has ended
                future.set_result(response)

        if waits:
            self.run_when_durable(request, response, result, set_response)
        else:
            set_response(response)
        return self._after_topics(future) if self._state.topics.unwritten else future

    def run_when_durable(
        self,
        request: RemotingCommand,
        response: RemotingCommand,
        result: PutResult,
        on_durable: Callable[[RemotingCommand], None],
    ) -> None:
        """Call ``on_durable`` with the response after the flush and the replication of a message."""
        request.fields, request.body = {}, b""  # views of the receive buffer, not to be retained during the flush

        def on_replicated(in_time: bool) -> None:
            if not in_time:
                response.code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
            on_durable(response)

        def on_flushed(on_disk: bool) -> None:
            if on_disk and self._state.replication.needs_slaves:
                self._state.replication.wait(result, on_replicated)
            else:
                on_durable(response if on_disk else self._late_flush_response(request, response))

        if self._waiters.is_sync:
            self._waiters.add(result, on_flushed)
        else:
            on_flushed(on_disk=True)

    async def _after_topics(self, durable_response: Awaitable[RemotingCommand]) -> RemotingCommand:
        response = await durable_response
        if not await self._state.topics.file.wait_written(_WRITE_TIMEOUT_S):
            response.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
        return response

    def _late_flush_response(self, request: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        """Return the response of a late flush: the message is not lost unless the disk is broken."""
        if self._state.store.fault is None:
            response.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            return response
        error = self._failure(PutStatus.SERVICE_NOT_AVAILABLE)
        return request.response(error.code, error.remark)


def respond_after_persist(handler: Handler, table: WrittenTable) -> Handler:
    """Wrap a handler: a response to a change of a table waits until the table's file has the change.

    A change that cannot be written is reverted: it would be lost at the next start.
    """

    def handle(request: RemotingCommand, connection: Connection) -> HandlerResponse:
        change_count_before = table.file.changes
        response = handler(request, connection)
        change_count = table.file.changes
        if change_count == change_count_before:
            return response
        table.file.call_when_written(
            lambda is_written: None if is_written else table.revert(change_count_before, change_count)
        )
        return _respond_when_written(request, response, table.file)

    return handle


async def _respond_when_written(
    request: RemotingCommand, response: HandlerResponse, file: TableFile
) -> RemotingCommand | None:
    try:
        fault = await await_write(file)
        if not fault:
            return await await_response(response)
    finally:
        close_response(response)
    return request.response(int(ResponseCode.SYSTEM_ERROR), fault)


async def await_write(file: TableFile) -> str:
    """Return nothing once a file has all changes of its table, else why it cannot be written."""
    if await file.wait_written(_WRITE_TIMEOUT_S):
        return ""
    return f"{file.name} cannot be written: {file.fault or 'the disk takes too long'}"
