"""Why a store refuses appends now, by cause: logged once when a cause begins, and once when it ends."""

import logging
import threading
from typing import Final

from rmq_core.store.commitlog.append import Appender
from rmq_core.store.config import StoreConfig
from rmq_core.store.results import PutResult, PutStatus

SHUTDOWN: Final = "shutdown"  # a cause of which nothing is logged
_LOGGER = logging.getLogger(__name__)
_REFUSED: Final = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)


class Refusals:
    """The causes for which appends are refused; any thread may add one."""

    def __init__(self, config: StoreConfig, appender: Appender) -> None:
        self._root = config.root
        self._appender = appender
        # Its master writes a slave's log; Java: "broker role is slave, so putMessage is forbidden".
        self._without_cause = _REFUSED if config.slave else None
        appender.refusal = self._without_cause
        self._texts: dict[str, str] = {}
        self._changing = threading.Lock()

    @property
    def by_cause(self) -> dict[str, str]:
        """The text of each cause."""
        return dict(self._texts)

    def add(self, cause: str, text: str) -> None:
        """Refuse appends because of a cause."""
        with self._changing:
            previous_text = self._texts.get(cause)
            self._texts[cause] = text
            self._appender.refusal = _REFUSED
        if previous_text is None and cause != SHUTDOWN:
            _LOGGER.error("%(store)s: takes no more messages: %(why)s", {"store": self._root, "why": text})

    def remove(self, cause: str) -> None:
        """Remove a cause; the store accepts appends again after the last one."""
        if cause not in self._texts:
            return
        with self._changing:
            text = self._texts.pop(cause)
            if not self._texts:
                self._appender.refusal = self._without_cause
        _LOGGER.warning("%(store)s: over: %(why)s", {"store": self._root, "why": text})
