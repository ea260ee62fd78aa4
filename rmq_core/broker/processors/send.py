"""Send requests for single messages and batches (codes 10, 310, 320).

Source: ``SendMessageProcessor``.
"""

from collections.abc import Callable
from functools import partial

from rmq_core.broker.processors.acknowledge import Acknowledgements
from rmq_core.broker.processors.put_message import Stored, Storing
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.reply_requests import REPLY_TO_CLIENT
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler, HandlerAnswer
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand, encode_json
from rmq_core.remoting.requests import SendMessage, SendMessageV2


class Sends:
    """Handles SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        state: BrokerState,
        storing: Storing,
        acknowledgements: Acknowledgements,
        after_change: Callable[[HandlerAnswer], HandlerAnswer],
    ) -> None:
        """Use ``after_change`` for the answer to a message that has created its topic."""
        self._state = state
        self._topics = state.topics
        self._times = state.stats.times
        self._page_cache = state.page_cache
        self._after_change = after_change
        self._storing = storing
        self._acknowledgements = acknowledgements
        self._id_prefix = state.store_host.to_bytes().hex().upper().encode()
        self._marks = encode_json(storing.marks)[1:-1]

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.SEND_MESSAGE: partial(self._send, SendMessage),
            RequestCode.SEND_MESSAGE_V2: partial(self._send, SendMessageV2),
            RequestCode.SEND_BATCH_MESSAGE: partial(self._send, SendMessageV2),
        }

    def _send(self, kind: type[SendMessage], request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        """Store a message or a batch; the fields of V2 have short names."""
        topics, acknowledgements, asked = self._topics, self._acknowledgements, read_fields(request, kind)
        before, times = topics.version, self._times
        begin_s = times.now_s()
        stored = self._storing.store(request, connection, asked)
        if REPLY_TO_CLIENT in (asked.properties or ""):
            state = self._state
            state.reply_requests.add(asked.properties or "", asked.topic, state.rights.login(request), connection)
        answer = self._answer(request, stored)
        if (took_s := times.now_s() - begin_s) > self._page_cache.timeout_s:
            self._page_cache.note_slow_append(took_s)
        waits = stored.waits and acknowledgements.must_wait
        if not waits:
            times.end_put(begin_s)
        if topics.version is not before:  # a topic was created
            return self._after_change(acknowledgements.when_safe(request, answer, stored.result, waits=waits))
        if topics.unwritten and not acknowledgements.is_named(asked.topic):
            return acknowledgements.when_safe(request, answer, stored.result, waits=waits)
        if not waits:
            return answer

        def safe(answer: RemotingCommand) -> None:
            times.end_put(begin_s)
            connection.release_inflight(WAITING_BYTES)
            if not request.is_oneway:
                connection.send(answer)

        connection.reserve_inflight(WAITING_BYTES)
        acknowledgements.tell(request, answer, stored.result, safe)
        return None

    def _answer(self, request: RemotingCommand, stored: Stored) -> RemotingCommand:
        """The answer to a send that succeeded; its fields are made as JSON: a dictionary took three times as long."""
        result = stored.result
        is_batch = bool(result.physical_offsets)
        fields = b'{"msgId":"%b","queueId":"%d","queueOffset":"%d",%b%b%b%b}' % (
            result.msg_id.encode() if is_batch else b"%b%016X" % (self._id_prefix, result.physical_offset),
            stored.queue_id,
            result.queue_offset,
            self._marks,
            b',"transactionId":' + encode_json(stored.uniq_key) if stored.uniq_key else b"",
            b',"recallHandle":' + encode_json(stored.recall_handle) if stored.recall_handle else b"",
            b',"batchUniqId":' + encode_json(stored.batch_key) if stored.batch_key else b"",
        )
        return request.response(ext_fields=fields)
