"""What users give a push consumer, and what they answer with."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final

from rmq_core.client.message import ReceivedMessage

log = logging.getLogger("rmq.client")


@dataclass(frozen=True, slots=True)
class Later:
    """A listener's answer: not all of these messages are consumed.

    Attributes:
        done: how many, from the first one, are consumed; the others are to come again.
        delay_level: when: 0 later each time, 1 to 18 after that level's time, -1 never: they are dead letters.
            Not in order.
        suspend_s: in order: how long the queue waits; the consumer's ``suspend_queue_s`` if it is None.
    """

    done: int = 0
    delay_level: int = 0
    suspend_s: float | None = None


Listener = Callable[[list[ReceivedMessage]], Awaitable[Later | None] | Later | None]
"""Takes messages of one queue. A plain function runs on the event loop, and has to be quick; ``async`` ones may
wait. None means that all are consumed; what is raised counts as ``Later()``."""

FAILED: Final = Later()


async def call_listener(listener: Listener, messages: list[ReceivedMessage]) -> Later | None:
    """Call a listener; what it raises is logged."""
    try:
        answer: Any = listener(messages)
        if answer is not None and isawaitable(answer):
            answer = await answer
    except Exception:
        first = messages[0]
        log.exception("the listener failed: %s, %d messages from %s", first.topic, len(messages), first.msg_id)
        return FAILED
    if answer is None or isinstance(answer, Later):
        return answer
    log.error("the listener answered %r: neither None nor Later", answer)
    return FAILED
