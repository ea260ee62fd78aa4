"""Why a store takes no messages now, and since when: told once, when it begins and when it is over."""

import logging
import threading
from typing import Final

from rmq_core.store.append import Appender
from rmq_core.store.values import PutResult, PutStatus

SHUTDOWN: Final = "shutdown"  # a cause of which nothing is logged
_LOGGER = logging.getLogger(__name__)
_REFUSED: Final = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)


def refuse_put(*_: object, **__: object) -> PutResult:
    """Instead of an append, in a store that takes none."""
    return _REFUSED


class Refusals:
    """The causes; any thread may add one, and the appender refuses while there is any."""

    def __init__(self, root: str, appender: Appender) -> None:
        self._root = root
        self._appender = appender
        self._texts: dict[str, str] = {}
        self._changing = threading.Lock()

    @property
    def by_cause(self) -> dict[str, str]:
        """What is said of each cause."""
        return dict(self._texts)

    def add(self, cause: str, text: str) -> None:
        """Take no more messages."""
        with self._changing:
            known = self._texts.get(cause)
            self._texts[cause] = text
            self._appender.refusal = _REFUSED
        if known is None and cause != SHUTDOWN:
            _LOGGER.error("%(store)s: takes no more messages: %(why)s", {"store": self._root, "why": text})

    def remove(self, cause: str) -> None:
        """Take messages again, unless there is another cause."""
        if cause not in self._texts:
            return
        with self._changing:
            known = self._texts.pop(cause)
            if not self._texts:
                self._appender.refusal = None
        _LOGGER.warning("%(store)s: over: %(why)s", {"store": self._root, "why": known})
