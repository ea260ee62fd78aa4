"""What is fuzzed: samples, and what reads them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_formats.errors import RmqError

Read = Callable[[bytes, random.Random], object]


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder or loader, and sound inputs of it.

    Attributes:
        name: in traces.
        samples: sound inputs.
        read: reads one; with chance for what else it takes.
        errors: what it may raise.
        share: of the inputs of a round, as a multiple of other targets'.
    """

    name: str
    samples: Sequence[bytes]
    read: Read
    errors: tuple[type[Exception], ...] = (RmqError,)
    share: float = 1.0
