"""The listener of a push consumer: the type of the user's function and of its answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final

from rmq_core.client.message import ReceivedMessage

log = logging.getLogger("rmq.client")


@dataclass(frozen=True, slots=True)
class Later:
    """A listener's answer: some of these messages are not consumed, and are delivered again later.

    Attributes:
        done: how many messages, from the first one, are consumed; the others are retried.
        delay_level: of the retry: 0 rises with each retry, 1 to 18 that level, -1 no retry: dead letters.
            Not in order.
        suspend_s: in order only: how long the queue waits; None takes the consumer's ``suspend_queue_s``.
    """

    done: int = 0
    delay_level: int = 0
    suspend_s: float | None = None


Listener = Callable[[list[ReceivedMessage]], Awaitable[Later | None] | Later | None]
"""Takes messages of one queue. A plain function runs on the event loop, and has to be quick; ``async`` ones may
wait. None means that all are consumed; what is raised counts as ``Later()``."""

FAILED: Final = Later()


async def call_listener(listener: Listener, messages: list[ReceivedMessage]) -> Later | None:
    """Call a listener, and log its exception."""
    try:
        answer: Any = listener(messages)
        if answer is not None and isawaitable(answer):
            answer = await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _log_failure(messages)  # something that it has waited for was cancelled, not the call
    except Exception:
        return _log_failure(messages)
    if answer is None or isinstance(answer, Later):
        return answer
    log.error("the listener must return None or Later, not %r", answer)
    return FAILED


def _log_failure(messages: list[ReceivedMessage]) -> Later:
    first = messages[0]
    log.exception("the listener failed: %s, %d messages from %s", first.topic, len(messages), first.msg_id)
    return FAILED
