"""Queue selectors: functions that choose the queue of a message by an argument of the caller.

Source: ``SelectMessageQueueByHash``, ``SelectMessageQueueByRandom``.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from rmq_core.client.message import Message
from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_formats.codecs.hashing import java_string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""Takes the topic's queues, the message and the caller's argument."""


def by_hash(queues: Sequence[MessageQueue], _message: Message, argument: Any) -> MessageQueue:
    """Choose the same queue for the same argument, as Java's selector does for a String, an Integer or a Long."""
    if isinstance(argument, int):
        # Integer#hashCode is the number, Long#hashCode the xor of its halves; both agree for a positive Integer.
        bits = argument & 0xFFFFFFFFFFFFFFFF
        code = argument if -(1 << 31) <= argument < 1 << 31 else (bits ^ bits >> 32) & 0xFFFFFFFF
    else:
        code = java_string_hash(str(argument))
    code = (code + (1 << 31)) % (1 << 32) - (1 << 31)
    return queues[abs(code) % len(queues)]


def at_random(queues: Sequence[MessageQueue], _message: Message, _argument: Any) -> MessageQueue:
    """Choose a random queue."""
    return random.choice(queues)
