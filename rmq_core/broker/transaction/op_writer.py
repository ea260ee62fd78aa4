"""Writer of op messages, which record ended half messages in batches.

Source: ``TransactionalOpBatchService``, ``TransactionalMessageServiceImpl#deletePrepareMessage``.
"""

import logging
from collections import deque
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.transaction.half import HALF_QUEUE
from rmq_core.store.results import PutStatus
from rmq_formats.codecs.layout import PROPERTY_TAGS, PROPERTY_WAIT
from rmq_formats.codecs.properties import encode_properties

log = logging.getLogger("rmq.broker.transactions")
OP_TAG: Final = "d"
_PROPERTIES: Final = encode_properties({PROPERTY_TAGS: OP_TAG, PROPERTY_WAIT: "true"})


class OpMessageWriter:
    """Pending op messages: records of half messages whose transaction is ended.

    After a crash, lost op messages are checked again with their producers.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store_host.to_bytes()
        self._pending: dict[int, None] = {}  # half messages, in the order in which they were ended
        self._bytes = 0
        self._unread: deque[tuple[int, set[int]]] = deque()  # op messages not readable yet: offset, half messages

    def add(self, half_offset: int) -> None:
        """Record an ended half message, by its queue offset."""
        if half_offset in self._pending:
            return
        self._pending[half_offset] = None
        self._bytes += len(str(half_offset)) + 1
        if self._bytes >= self._state.config.transaction_op_max_bytes:
            self.write()

    def has(self, half_offset: int) -> bool:
        """Return whether a half message is ended by an op message that is not readable yet."""
        return half_offset in self._pending or any(half_offset in offsets for _, offsets in self._unread)

    def write(self) -> None:
        """Write op messages of all pending half messages; refused ones remain pending."""
        store = self._state.store
        readable = store.max_offset(names.OP_HALF_TOPIC, HALF_QUEUE)
        while self._unread and self._unread[0][0] < readable:
            self._unread.popleft()
        while self._pending:
            offsets, body = self._next_op_message()
            now_ms = self._state.clock_ms()
            result = store.appender.put(names.OP_HALF_TOPIC, HALF_QUEUE, body, _PROPERTIES, now_ms, self._host, now_ms)
            if result.status is not PutStatus.PUT_OK:
                log.error("op messages of transactions cannot be stored now: %(why)s", {"why": result.status.value})
                return
            for offset in offsets:
                del self._pending[offset]
            self._bytes -= len(body)
            self._unread.append((result.queue_offset, offsets))

    def _next_op_message(self) -> tuple[set[int], bytes]:
        """Return the half messages of the next op message, and its body."""
        offsets, body, max_bytes = set(), bytearray(), self._state.config.transaction_op_max_bytes
        for offset in self._pending:
            if len(body) >= max_bytes:
                break
            offsets.add(offset)
            body += b"%d," % offset
        return offsets, bytes(body)
