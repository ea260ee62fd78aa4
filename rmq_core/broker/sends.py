"""Sends: single messages and batches (codes 10, 310, 320).

Source: ``SendMessageProcessor``.
"""

import asyncio
from collections.abc import Callable

from rmq_core.broker.appending import DiskWaiters
from rmq_core.broker.state import BrokerState
from rmq_core.broker.storing import Stored, Storing
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Answer, Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand, encode_json
from rmq_core.remoting.requests import SendMessage, SendMessageV2
from rmq_core.store.values import PutStatus


class Sends:
    """Handles sends."""

    def __init__(self, state: BrokerState, storing: Storing, waiters: DiskWaiters) -> None:
        self._state = state
        self._storing = storing
        self._waiters = waiters
        self._must_wait = waiters.is_sync or state.replication.needs_slaves
        self._id_prefix = state.store_host.to_bytes().hex().upper().encode()
        self._marks = encode_json(storing.marks)[1:-1]

    def handlers(self) -> dict[int, Handler]:
        """The table of handlers."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send(self, request: RemotingCommand, connection: Connection) -> Answer:
        """SEND_MESSAGE (10)."""
        return self._send(request, connection, read_fields(request, SendMessage))

    def send_v2(self, request: RemotingCommand, connection: Connection) -> Answer:
        """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320)."""
        return self._send(request, connection, read_fields(request, SendMessageV2))

    def _send(self, request: RemotingCommand, connection: Connection, asked: SendMessage) -> Answer:
        topics = self._state.topics.version
        stored = self._storing.store(request, connection, asked)
        answer = self._answer(request, stored)
        if not (self._must_wait and stored.waits):
            return answer
        if self._state.topics.version is not topics:  # name servers are waited for, too
            return self._when_safe(request, answer, stored)

        def safe(answer: RemotingCommand) -> None:
            if not request.is_oneway:
                connection.send(answer)

        self._await(request, answer, stored, safe)
        return None

    def _await(
        self, request: RemotingCommand, answer: RemotingCommand, stored: Stored, safe: Callable[[RemotingCommand], None]
    ) -> None:
        """Have a function called with the answer when the message is on the disk, and on slaves, as it has to be."""

        def replicated(in_time: bool) -> None:
            if not in_time:
                answer.code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
            safe(answer)

        def forced(on_disk: bool) -> None:
            if on_disk and self._state.replication.needs_slaves:
                self._state.replication.wait(stored.result, replicated)
            else:
                safe(answer if on_disk else self._unforced(request, answer))

        if self._waiters.is_sync:
            self._waiters.add(stored.result, forced)
        else:
            forced(on_disk=True)

    def _when_safe(
        self, request: RemotingCommand, answer: RemotingCommand, stored: Stored
    ) -> asyncio.Future[RemotingCommand]:
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        def safe(answer: RemotingCommand) -> None:
            if not future.done():  # else its connection has ended
                future.set_result(answer)

        self._await(request, answer, stored, safe)
        return future

    def _answer(self, request: RemotingCommand, stored: Stored) -> RemotingCommand:
        """The answer to a send that went well, its fields made as JSON: a dictionary took three times as long."""
        result = stored.result
        is_batch = bool(result.physical_offsets)
        fields = b'{"msgId":"%b","queueId":"%d","queueOffset":"%d",%b%b%b}' % (
            result.msg_id.encode() if is_batch else b"%b%016X" % (self._id_prefix, result.physical_offset),
            stored.queue_id,
            result.queue_offset,
            self._marks,
            b',"transactionId":' + encode_json(stored.uniq_key) if stored.uniq_key else b"",
            b',"recallHandle":' + encode_json(stored.recall_handle) if stored.recall_handle else b"",
        )
        return request.response(ext_fields=fields)

    def _unforced(self, request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        """The answer to a send whose message is not on the disk: late is not lost, a broken disk may be."""
        if self._state.store.fault is None:
            answer.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
            return answer
        error = self._storing.failure(PutStatus.SERVICE_NOT_AVAILABLE)
        return request.response(error.code, error.remark)
