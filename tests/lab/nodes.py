"""The part ``nodes``: a master and its slave, whose connection is cut, and whose disks lose power, hang and fail.

The steps are those of the seed; how many bytes a connection has brought before the next step is not.
"""

import asyncio

from tests.ha.two_nodes import TwoNodes, quick_retries
from tests.lab.rounds import Round

_STEPS = 120
_FAULTS = {"cut", "master_loses_power", "slave_loses_power", "hang", "fail"}


def play(one: Round) -> None:
    """Run one schedule of both."""
    nodes = TwoNodes(one.work, one.seed)
    with quick_retries():
        try:
            asyncio.run(nodes.run(_STEPS))
        finally:
            for step in nodes.steps:
                one.step(step)
            one.case(len(nodes.steps))
            one.fault(sum(count for name, count in nodes.counts.items() if name in _FAULTS))
