"""Recall handles of timer messages.

Source: ``RecallMessageHandle``.
"""

import base64
import binascii
from typing import Final, NamedTuple

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_formats.codecs.properties import parse_decimal

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """A recall handle: names a timer message, due in the interval of ``due_ms``, that can still be recalled."""

    topic: str
    broker_name: str
    due_ms: int
    uniq_key: str

    def encode(self) -> str:
        """Encode the handle for clients."""
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.due_ms), self.uniq_key))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Decode a client's handle; a due time that is no number becomes -1. Raises ResponseError."""
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, topic, broker_name, due, uniq_key, *_ = data.decode("utf-8", "replace").split(" ")
        except (ValueError, binascii.Error):
            version = topic = broker_name = due = uniq_key = ""
        if version != _VERSION:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        return cls(topic, broker_name, parse_decimal(due, -1), uniq_key)
