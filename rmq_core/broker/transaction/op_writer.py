"""Op messages, which note the half messages that are ended: gathered, then written to the op topic.

Source: ``TransactionalOpBatchService``, ``TransactionalMessageServiceImpl#deletePrepareMessage``.
"""

import logging
from collections import deque
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.transaction.half import HALF_QUEUE
from rmq_core.store.results import PutStatus
from rmq_formats.codecs.properties import encode_properties

log = logging.getLogger("rmq.broker.transactions")
OP_TAG: Final = "d"
_PROPERTIES: Final = encode_properties({"TAGS": OP_TAG, "WAIT": "true"})


class OpNotes:
    """Op messages to be written: they mark half messages whose transaction is ended.

    What is lost when the process dies is asked for again: the producer answers as before.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store_host.to_bytes()
        self._gathered: dict[int, None] = {}  # half messages, in the order in which they were ended
        self._bytes = 0
        self._unread: deque[tuple[int, set[int]]] = deque()  # op messages not readable yet: offset, what they note

    def add(self, half_offset: int) -> None:
        """Note that a half message is ended, by its queue offset."""
        if half_offset in self._gathered:
            return
        self._gathered[half_offset] = None
        self._bytes += len(str(half_offset)) + 1
        if self._bytes >= self._state.config.transaction_op_max_bytes:
            self.write()

    def has(self, half_offset: int) -> bool:
        """Whether a half message is ended, though readers of the op topic cannot know it yet."""
        return half_offset in self._gathered or any(half_offset in offsets for _, offsets in self._unread)

    def write(self) -> None:
        """Write op messages of all that is gathered; what the store does not take now stays gathered."""
        store = self._state.store
        readable = store.max_offset(names.OP_HALF_TOPIC, HALF_QUEUE)
        while self._unread and self._unread[0][0] < readable:
            self._unread.popleft()
        while self._gathered:
            offsets, body = self._next_note()
            now_ms = self._state.clock_ms()
            result = store.appender.put(names.OP_HALF_TOPIC, HALF_QUEUE, body, _PROPERTIES, now_ms, self._host, now_ms)
            if result.status is not PutStatus.PUT_OK:
                log.error("op messages of transactions cannot be stored now: %(why)s", {"why": result.status.value})
                return
            for offset in offsets:
                del self._gathered[offset]
            self._bytes -= len(body)
            self._unread.append((result.queue_offset, offsets))

    def _next_note(self) -> tuple[set[int], bytes]:
        """The half messages of the next op message, and its body."""
        offsets, body, most = set(), bytearray(), self._state.config.transaction_op_max_bytes
        for offset in self._gathered:
            if len(body) >= most:
                break
            offsets.add(offset)
            body += b"%d," % offset
        return offsets, bytes(body)
