"""How long the tests run that kill, damage and flip at random: ``RMQ_TORTURE=N`` runs N times as many."""

import os
from typing import Final

TIMES: Final = int(os.environ.get("RMQ_TORTURE", "1"))


def rounds(count: int) -> range:
    """``count`` rounds in CI, more where ``make torture-jobs`` asks for them; their numbers are good seeds."""
    return range(count * TIMES)
