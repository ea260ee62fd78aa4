"""The listener of a push consumer: type of the user's function, and of its results."""

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
    """Result of a listener for messages to be delivered again later.

    Attributes:
        done: number of consumed messages, from the first one on; the others are retried.
        delay_level: delay level of the retry, in concurrent consumption: 1 to 18; 0 for a level that rises with each
            retry; -1 for dead letters instead of a retry.
        suspend_s: in orderly consumption, pause of the queue; None for the consumer's ``suspend_queue_s``.
    """

    done: int = 0
    delay_level: int = 0
    suspend_s: float | None = None


Listener = Callable[[list[ReceivedMessage]], Awaitable[Later | None] | Later | None]
"""Function of messages of one queue. A plain function runs on the event loop, and has to be quick; an ``async`` one may
wait. None means that all messages are consumed; an exception counts as ``Later()``."""

FAILED: Final = Later()


async def call_listener(listener: Listener, messages: list[ReceivedMessage]) -> Later | None:
    """Call a listener with a list of its own, and log its exception."""
    try:
        response: Any = listener([*messages])
        if response is not None and isawaitable(response):
            response = await response
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _log_failure(messages)  # the call itself was not cancelled, but something that it awaited
    except Exception:
        return _log_failure(messages)
    if response is None or isinstance(response, Later):
        return response
    log.error("the listener must return None or Later, not %r", response)
    return FAILED


def _log_failure(messages: list[ReceivedMessage]) -> Later:
    first = messages[0]
    log.exception("the listener failed: %s, %d messages from %s", first.topic, len(messages), first.msg_id)
    return FAILED
