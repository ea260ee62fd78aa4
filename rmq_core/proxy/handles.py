"""Receipt handles of the gRPC service: those of POP, with the record's physical offset and the child's name.

Source: ``ReceiptHandle``. That of the original has no child, and its clients say it; but 5.2.0 of Java says none where
it changes an invisible time.
"""

from typing import NamedTuple

from rmq_core.proxy.checks import may_be_child
from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.wire import v2
from rmq_core.remoting.pop import PopHandle

_PARTS = 9


class Receipt(NamedTuple):
    """Handle that a message is acknowledged by.

    Attributes:
        handle: of POP.
        physical_offset: of the record, in its broker's log.
        lite_topic: that the message was popped of; empty of those that are no children.
    """

    handle: PopHandle
    physical_offset: int
    lite_topic: str = ""

    def encode(self) -> str:
        """Encode the handle as text, which clients do not parse."""
        text = f"{self.handle.encode()} {self.physical_offset}"
        return f"{text} {self.lite_topic}" if self.lite_topic else text

    @classmethod
    def decode(cls, text: str, lite_topic: str = "") -> "Receipt":
        """Parse a handle; ``lite_topic`` is the client's, for handles of other proxies without a child's name.

        Raises StatusError.
        """
        try:
            handle = PopHandle.decode(text)
        except ValueError:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service") from None
        last = text.split(" ", _PARTS)[_PARTS - 1 :]
        if not last or not (last[0].isascii() and last[0].isdecimal() and len(last[0]) < 19):
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service")
        if len(last) > 1:
            if not may_be_child(last[1]):
                raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is of nothing that can be a child")
            return cls(handle, int(last[0]), last[1])
        if lite_topic and not may_be_child(lite_topic):
            raise StatusError(v2.ILLEGAL_LITE_TOPIC, f"there is no lite topic {lite_topic[:200]!r}")
        return cls(handle, int(last[0]), lite_topic)

    def check_time(self, now_ms: int) -> None:
        """Refuse a handle after its invisible time, when another client may have the message. Raises StatusError."""
        if self.handle.visible_ms <= now_ms:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
