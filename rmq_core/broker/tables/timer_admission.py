"""Redirection of messages with a delay level, and of timer messages after a check of their delivery time.

Source: ``HookUtils#handleScheduleMessage``, ``#checkIfTimerMessage``, ``#transformTimerMessage``,
``SendMessageProcessor#handlePutMessageResult``.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.names import SCHEDULE_TOPIC
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.store.store import MessageStore
from rmq_formats.codecs import layout
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.timer import PROPERTY_DELETED_KEY, PROPERTY_OUT_MS
from rmq_formats.codecs.topics import TIMER_TOPIC

TIMER_PROPERTIES: Final = (
    layout.PROPERTY_TIMER_DELAY_SEC,
    layout.PROPERTY_TIMER_DELAY_MS,
    layout.PROPERTY_TIMER_DELIVER_MS,
)
_MAX_DIGITS: Final = 19  # of an int64
_MAX_TIME_MS: Final = (1 << 63) - 1


@dataclass(eq=False)
class TimerAdmission:
    """Checks timer messages, and redirects them to the timer topic.

    ``_count_due`` counts the messages of the interval that begins at a time; None if timer messages are switched off.
    """

    _config: Callable[[], BrokerConfig]
    _clock_ms: Callable[[], int]
    _count_due: Callable[[int], int] | None

    def redirect(self, topic: str, queue_id: int, properties: dict[str, str]) -> tuple[str, int]:
        """Return topic and queue in which a message is stored first; add the real ones to a timer message's properties.

        A message that is no timer message, or is due already, is stored in its real topic. Call this for messages
        without a delay level, and for committed ones; for others call ``remove_timer_properties``.

        Raises:
            ResponseError: the delivery time is illegal, its interval is congested, or timers are switched off.
        """
        if not is_timer(topic, properties):
            return topic, queue_id
        config = self._config()
        if self._count_due is None:
            problem = "accurate timer message is not enabled, timerWheelEnable is false"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)
        now_ms = self._clock_ms()
        deliver_ms = _deliver_ms(properties, now_ms)
        if deliver_ms is None or deliver_ms - now_ms > config.timer_max_delay_sec * 1000:
            raise self._illegal_message_error()
        if deliver_ms <= now_ms:
            if PROPERTY_DELETED_KEY in properties:
                raise self._illegal_message_error()
            return topic, queue_id
        precision_ms = config.timer_precision
        due_ms = (deliver_ms - 1) // precision_ms * precision_ms  # an interval is delivered when it is over
        self._check_congestion(self._count_due(due_ms))
        properties[PROPERTY_OUT_MS] = str(due_ms)
        properties[layout.PROPERTY_REAL_TOPIC] = topic
        properties[layout.PROPERTY_REAL_QUEUE_ID] = str(queue_id)
        return TIMER_TOPIC, 0

    def _check_congestion(self, waiting_count: int) -> None:
        """Refuse messages of a congested interval at random, and all above twice the limit. Source: ``isReject``."""
        limit = self._config().timer_congest_num_each_slot
        if waiting_count <= limit:
            return
        if waiting_count >= 2 * limit or random.random() > (waiting_count - limit) / (limit + 0.1):
            problem = (
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control"
            )
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem)

    def _illegal_message_error(self) -> ResponseError:
        max_delay = f"the max delay {self._config().timer_max_delay_sec * 1000}ms"
        problem = f"timer message illegal, the delay time should not be bigger than {max_delay}"
        recall_problem = "or if set del msg, the delay time should be bigger than the current time"
        return ResponseError(ResponseCode.MESSAGE_ILLEGAL, f"{problem}; {recall_problem}")


def is_timer(topic: str, properties: Mapping[str, str]) -> bool:
    """Return whether a message without a delay level is a timer message that was not redirected yet."""
    if topic == TIMER_TOPIC or PROPERTY_OUT_MS in properties:
        return False
    return any(name in properties for name in TIMER_PROPERTIES)


def remove_timer_properties(properties: dict[str, str]) -> None:
    """Remove the delivery times of a message that has a delay level."""
    for name in TIMER_PROPERTIES:
        properties.pop(name, None)


def _deliver_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return the delivery time of a message, ms; None if the property is no valid number."""
    for name, factor, since_ms in (
        (layout.PROPERTY_TIMER_DELAY_SEC, 1000, now_ms),
        (layout.PROPERTY_TIMER_DELAY_MS, 1, now_ms),
        (layout.PROPERTY_TIMER_DELIVER_MS, 1, 0),
    ):
        text = properties.get(name)
        if text is not None:
            digits = text[1:] if text[:1] in ("+", "-") else text
            if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
                return None
            deliver_ms = since_ms + int(text) * factor
            return deliver_ms if abs(deliver_ms) <= _MAX_TIME_MS else None
    return None


class DelayLevels:
    """Delay levels of ``messageDelayLevel`` from 1 on, and the redirection to the schedule topic."""

    def __init__(self, store: MessageStore) -> None:
        self.delays_ms = delay_levels_ms(store.config.delay_levels)

    def redirect(self, topic: str, queue_id: int, properties: dict[str, str], level: int) -> tuple[str, int]:
        """Return topic and queue in which a message of a delay level waits; add the real ones to the properties.

        The level is above 0; a level above the highest counts as the highest.
        """
        level = min(level, len(self.delays_ms))
        properties[layout.PROPERTY_DELAY] = str(level)
        properties[layout.PROPERTY_REAL_TOPIC] = topic
        properties[layout.PROPERTY_REAL_QUEUE_ID] = str(queue_id)
        return SCHEDULE_TOPIC, level - 1
