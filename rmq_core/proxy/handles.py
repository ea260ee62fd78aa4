"""Receipt handles of the gRPC service: those of POP, with the place of the record.

Source: ``ReceiptHandle``.
"""

from typing import NamedTuple

from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.wire import v2
from rmq_core.remoting.pop import PopHandle

_PARTS = 9


class Receipt(NamedTuple):
    """What a message is acknowledged by.

    Attributes:
        handle: of POP.
        physical_offset: of the record, in its broker's log.
    """

    handle: PopHandle
    physical_offset: int

    def encode(self) -> str:
        """The text, which clients do not look into."""
        return f"{self.handle.encode()} {self.physical_offset}"

    @classmethod
    def decode(cls, text: str) -> "Receipt":
        """Parse. Raises StatusError."""
        try:
            handle = PopHandle.decode(text)
        except ValueError:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service") from None
        last = text.split(" ")[_PARTS - 1 :]
        if len(last) != 1 or not (last[0].isascii() and last[0].isdecimal() and len(last[0]) < 19):
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "the receipt handle is none of this service")
        return cls(handle, int(last[0]))

    def check_time(self, now_ms: int) -> None:
        """Refuse a handle whose message others may have by now. Raises StatusError."""
        if self.handle.visible_ms <= now_ms:
            raise StatusError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
