"""Receipt handles: calls by them (acknowledgements, invisible times, dead letters), and renewal for push consumers.

A renewed message is invisible until its acknowledgement, or until its client has ended. Renewals are timed by this
machine's clock, as the broker's may differ.

Source: ``AckMessageActivity``, ``ChangeInvisibleDurationActivity``, ``ForwardMessageToDLQActivity``,
``ReceiptHandleProcessor``, ``RenewEvent``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from rmq_core.client.errors import BrokerError
from rmq_core.client.pop.handles import ack_fields, changed_handle, dead_letter_fields
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import group_name, topic_name
from rmq_core.proxy.messages import ReceiptHandle, lite_topic_offset
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import StatusError, combined_status, ms_of, ok, rpc, status_of, v2
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.pop import ChangeInvisibleTime, ChangeInvisibleTimeResponse, retry_topic
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.errors import RmqError

log = logging.getLogger("rmq.proxy")
_RENEWAL_INTERVAL_S: Final = 5.0
_RENEW_BEFORE_S: Final = 10.0
_MAX_RENEWAL_S: Final = 3 * 3600.0  # after which the message is delivered again
RELEASE_MS: Final = 1000  # invisible time of messages of ended clients
_RENEWAL_STEP_MS: Final = 60_000
_MAX_RENEWAL_STEPS: Final = 10
_MAX_RENEWED: Final = 1_000_000  # messages; further ones are not renewed
_MAX_RENEWED_OF_CLIENT: Final = 32_768  # eight times as many as the official clients keep in memory
_MAX_CONCURRENT_RENEWALS: Final = 64  # of one broker
Change = Callable[[str, str, ReceiptHandle, int], Awaitable[ReceiptHandle]]
Key = tuple[str, str, str]  # client id, group, first receipt handle
PROXY_MAX_INVISIBLE_MS: Final = 12 * 3_600_000
_ACKS_AT_ONCE: Final = 32
_T = TypeVar("_T")


@dataclass(slots=True)
class _RenewedMessage:
    """Message under renewal.

    At ``visible_s`` the message becomes visible without a renewal.
    """

    topic: str
    receipt: ReceiptHandle
    since_s: float
    visible_s: float
    times: int = 0
    renewal_done: "asyncio.Future[None] | None" = None


class Renewal:
    """Renewal of the invisible times of delivered messages, by the receipt handles of their clients.

    ``change`` sets the invisible time of a message; its arguments are group, topic, receipt and ms.
    """

    change: Change

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._messages: dict[Key, _RenewedMessage] = {}
        self._counts: dict[str, int] = {}  # of messages, by client
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by broker, so that a hanging broker does not delay others

    def start(self, client_id: str, group: str, topic: str, receipt: ReceiptHandle) -> None:
        """Start to renew a message that was just popped."""
        if len(self._messages) < _MAX_RENEWED and self._counts.get(client_id, 0) < _MAX_RENEWED_OF_CLIENT:
            now_s = monotonic()
            visible_s = now_s + receipt.handle.invisible_ms / 1000
            self._put((client_id, group, receipt.encode()), _RenewedMessage(topic, receipt, now_s, visible_s))

    def count(self, client_id: str) -> int:
        """Return the number of a client's renewed messages."""
        return self._counts.get(client_id, 0)

    def _put(self, key: Key, message: _RenewedMessage) -> None:
        if self._messages.setdefault(key, message) is message:
            self._counts[key[0]] = self._counts.get(key[0], 0) + 1

    def _pop(self, key: Key) -> _RenewedMessage | None:
        message = self._messages.pop(key, None)
        if message is not None:
            count = self._counts[key[0]] = self._counts[key[0]] - 1
            if not count:
                del self._counts[key[0]]
        return message

    @asynccontextmanager
    async def stop_renewal(self, client_id: str, group: str, handle: str) -> AsyncIterator[ReceiptHandle | None]:
        """Stop the renewal of a message, and yield its newest receipt, or None if the message was not renewed.

        After a TransportError in the block the message is renewed again, as the client will repeat its call.
        """
        key = client_id, group, handle
        message = self._pop(key)
        if message is not None and message.renewal_done is not None:
            await asyncio.wait([message.renewal_done])  # which returns a new receipt handle
        try:
            yield None if message is None else message.receipt
        except TransportError:
            if message is not None:
                self._put(key, message)
            raise

    async def run(self) -> None:
        """Renew messages periodically, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_RENEWAL_INTERVAL_S)
                self.renew_due()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def renew_due(self) -> None:
        """Renew messages that are soon visible, and release those of ended clients."""
        now_s = monotonic()
        due: dict[str, list[Key]] = {}
        for key, message in self._messages.items():
            if message.visible_s - now_s <= _RENEW_BEFORE_S or not self._sessions.has(key[0]):
                due.setdefault(message.receipt.handle.broker_name, []).append(key)
        for broker, keys in due.items():
            if broker not in self._tasks:
                task = self._tasks[broker] = asyncio.create_task(self._renew_all(keys))
                task.add_done_callback(partial(self._on_task_end, broker))

    def _on_task_end(self, broker: str, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(broker, None)

    async def _renew_all(self, keys: list[Key]) -> None:
        pending = iter(keys)
        await asyncio.gather(*(self._renew_each(pending) for _ in range(min(_MAX_CONCURRENT_RENEWALS, len(keys)))))

    async def _renew_each(self, pending: Iterator[Key]) -> None:
        for key in pending:
            message = self._messages.get(key)
            if message is None:
                continue
            renewal_done = message.renewal_done = asyncio.get_running_loop().create_future()
            try:
                await self._renew(key, message)
            except Exception:
                log.exception("a renewal failed")
                self._pop(key)
            finally:
                message.renewal_done = None
                renewal_done.set_result(None)

    async def _renew(self, key: Key, message: _RenewedMessage) -> None:
        client_id, group, _ = key
        now_s = monotonic()
        is_over = not self._sessions.has(client_id) or now_s - message.since_s > _MAX_RENEWAL_S
        step_ms = RELEASE_MS if is_over else _RENEWAL_STEP_MS * min(message.times + 1, _MAX_RENEWAL_STEPS)
        try:
            message.receipt = await self.change(group, message.topic, message.receipt, step_ms)
        except TransportError as error:
            if monotonic() < message.visible_s and not is_over:
                return  # the broker may be back in time
            self._end_renewal(key, error)
        except RmqError as error:
            self._end_renewal(key, error)
        else:
            message.times += 1
            message.visible_s = now_s + step_ms / 1000
            if is_over:
                self._pop(key)

    def _end_renewal(self, key: Key, error: RmqError) -> None:
        log.info("a message cannot be renewed, and comes back: %(error)s", {"error": error})
        self._pop(key)


class Receipts:
    """Handler of calls by receipt handles."""

    def __init__(self, brokers: Brokers, renewal: Renewal) -> None:
        self.renewal = renewal
        self._brokers = brokers
        self._tasks: set[asyncio.Task[Any]] = set()  # that continue after the end of their calls
        renewal.change = self.change

    async def close(self) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start_task(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Start a task that continues after the end of its call."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%(error)s", {"error": error})  # the call returns the error, unless it has ended

    async def ack(self, request: Any, client_id: str, _: str) -> Any:
        """AckMessage."""
        group, topic = group_name(request.group), topic_name(request.topic)
        if not request.entries:
            raise StatusError(v2.BAD_REQUEST, "no entry to acknowledge")
        entries = await asyncio.shield(self.start_task(self._ack_all(client_id, group, topic, request.entries)))
        return rpc.AckMessageResponse(status=combined_status([entry.status for entry in entries]), entries=entries)

    async def _ack_all(self, client_id: str, group: str, topic: str, entries: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for start in range(0, len(entries), _ACKS_AT_ONCE):
            batch = entries[start : start + _ACKS_AT_ONCE]
            results += await asyncio.gather(*(self._ack(client_id, group, topic, entry) for entry in batch))
        return results

    async def _ack(self, client_id: str, group: str, topic: str, entry: Any) -> Any:
        try:
            async with self._newest_receipt(client_id, group, entry) as receipt:
                self._check_time(receipt)
                await self.acknowledge(group, topic, receipt)
            status = ok()
        except RmqError as error:
            status = status_of(error)
        return rpc.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    @asynccontextmanager
    async def _newest_receipt(self, client_id: str, group: str, request: Any) -> AsyncIterator[ReceiptHandle]:
        """Yield the newest receipt of a call's message, whose renewal stops. Raises StatusError."""
        async with self.renewal.stop_renewal(client_id, group, request.receipt_handle) as renewed:
            yield renewed or ReceiptHandle.decode(request.receipt_handle, request.lite_topic)

    def _check_time(self, receipt: ReceiptHandle) -> None:
        """Refuse a handle after its invisible time, when another client may have the message. Raises StatusError."""
        if receipt.handle.visible_ms <= self._brokers.now_ms(receipt.handle.broker_name):
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    async def acknowledge(self, group: str, topic: str, receipt: ReceiptHandle) -> None:
        """Acknowledge a message at its broker. Raises StatusError, BrokerError, TransportError."""
        handle = receipt.handle
        address = await self._brokers.address(topic, handle.broker_name)
        with _translate_handle_errors():
            fields = ack_fields(group, topic, handle, receipt.lite_topic or None)
            await self._brokers.request(address, RequestCode.ACK_MESSAGE, fields)

    async def change_invisibility(self, request: Any, client_id: str, _: str) -> Any:
        """ChangeInvisibleDuration."""
        group, topic = group_name(request.group), topic_name(request.topic)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= PROXY_MAX_INVISIBLE_MS:
            raise StatusError(
                v2.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is not of 0 to {PROXY_MAX_INVISIBLE_MS} ms"
            )

        async def change() -> ReceiptHandle:
            async with self._newest_receipt(client_id, group, request) as receipt:
                self._check_time(receipt)
                with _translate_handle_errors():
                    return await self.change(group, topic, receipt, invisible_ms, suspends=request.suspend)

        receipt = await asyncio.shield(self.start_task(change()))
        return rpc.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=receipt.encode())

    async def change(
        self, group: str, topic: str, receipt: ReceiptHandle, invisible_ms: int, *, suspends: bool = False
    ) -> ReceiptHandle:
        """Set the invisible time of a message, from now; return the new receipt.

        With ``suspends`` the delivery does not count, and all messages of a pop of lite topics get the invisible time.
        Raises StatusError if the message of a lite topic was acknowledged before, BrokerError, TransportError.
        """
        handle = receipt.handle
        fields = ChangeInvisibleTime(
            consumer_group=group,
            topic=retry_topic(group, topic, handle.kind),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.offset,
            invisible_time=invisible_ms,
            lite_topic=receipt.lite_topic or None,
            suspend=suspends,
        )
        address = await self._brokers.address(topic, handle.broker_name)
        command = await self._brokers.request(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        response = read_fields(command, ChangeInvisibleTimeResponse)
        if receipt.lite_topic and not response.pop_time:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the message was acknowledged before")
        # The new check point begins at the message itself. Java's proxy keeps the old start: the message comes back.
        return receipt._replace(handle=changed_handle(handle, response))

    async def forward(self, request: Any, client_id: str, _: str) -> Any:
        """ForwardMessageToDeadLetterQueue."""
        group, topic = group_name(request.group), topic_name(request.topic)

        async def forward() -> None:
            async with self._newest_receipt(client_id, group, request) as receipt:
                await self._check_record(group, topic, receipt)
                await self.send_to_dead_letters(group, topic, receipt, request.message_id)

        await asyncio.shield(self.start_task(forward()))
        return rpc.ForwardMessageToDeadLetterQueueResponse(status=ok())

    async def _check_record(self, group: str, topic: str, receipt: ReceiptHandle) -> None:
        """Refuse a handle with the offset of another record, which the client may not be allowed to read.

        Java's proxy copies the record at any offset. Raises StatusError.
        """
        handle = receipt.handle
        address = await self._brokers.address(topic, handle.broker_name)
        stored_in = retry_topic(group, topic, handle.kind)
        record = await self._brokers.view_record(address, stored_in, receipt.physical_offset)
        if record is None or not is_popped_record(receipt, stored_in, record):
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle refers to no stored message")

    async def send_to_dead_letters(self, group: str, topic: str, receipt: ReceiptHandle, message_id: str) -> None:
        """Send a message to the dead letter queue, and acknowledge the message."""
        handle = receipt.handle
        fields = dead_letter_fields(group, topic, receipt.physical_offset, message_id)
        address = await self._brokers.address(topic, handle.broker_name)
        await self._brokers.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        await self.acknowledge(group, topic, receipt)


@contextmanager
def _translate_handle_errors() -> Iterator[None]:
    """Translate a missing offset into an invalid handle: the official clients retry after other codes."""
    try:
        yield
    except BrokerError as error:
        if error.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER):
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, error.remark) from error
        raise


def is_popped_record(receipt: ReceiptHandle, stored_in: str, record: StoredMessage) -> bool:
    """Return True if a record is the popped message of a receipt."""
    handle = receipt.handle
    if record.topic != stored_in:
        return False
    if receipt.lite_topic:
        return lite_topic_offset(record, stored_in) == (receipt.lite_topic, handle.offset)
    return (record.queue_id, record.queue_offset) == (handle.queue_id, handle.offset)
