"""How long the tests run that kill, damage and flip at random: ``RMQ_TORTURE=N`` runs N times as many.

They are marked ``torture``, wherever they stand: ``make torture`` runs all of them, and ``make test-all`` their short
form.
"""

import os
from typing import Final

TIMES: Final = int(os.environ.get("RMQ_TORTURE", "1"))


def rounds(count: int) -> range:
    """``count`` rounds in ``make test-all``, more in ``make torture``; their numbers are good seeds."""
    return range(count * TIMES)
