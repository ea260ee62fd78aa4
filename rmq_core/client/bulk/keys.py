"""Unique keys for many messages at once, in the form of ``UniqKeys``."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_core.remoting.uniq_key import UniqKeys

_HEAD_CHARACTERS: Final = 20
_TAIL_SHIFTS: Final = np.arange(44, -4, -4, dtype=np.int64)
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


class BulkUniqKeys:
    """Makes unique keys as arrays.

    A key's tail is a time in ms and a number of 16 bits: here both count on as one, from the clock's time.
    """

    def __init__(self, keys: UniqKeys | None = None) -> None:
        self._keys = UniqKeys() if keys is None else keys
        self._next = 0

    def next(self, count: int, now_ms: int | None = None) -> NDArray[np.uint8]:
        """Return uint8[count, 32]: keys that no other message has.

        Args:
            count: how many.
            now_ms: the time; the clock's if it is not given.
        """
        first = self._keys.next(now_ms)
        self._next = max(self._next, int(first[_HEAD_CHARACTERS : _HEAD_CHARACTERS + 8], 16) << 16)
        tails = self._next + np.arange(count, dtype=np.int64)
        self._next += count
        keys = np.empty((count, _HEAD_CHARACTERS + len(_TAIL_SHIFTS)), dtype=np.uint8)
        keys[:, :_HEAD_CHARACTERS] = np.frombuffer(first[:_HEAD_CHARACTERS].encode(), dtype=np.uint8)
        keys[:, _HEAD_CHARACTERS:] = _DIGITS[(tails[:, None] >> _TAIL_SHIFTS) & 15]
        return keys
