"""What goes wrong between machines, and on their disks and clocks, while all of them run on."""

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.lab.clusters.nodes import BrokerNode
from tests.lab.clusters.promises import Promises
from tests.lab.rounds import Round
from tests.lab.virtual.network import Network

_JUMPS_MS = (0, 7_200_000, -7_200_000, 40 * 86_400_000)


class Faults:
    """Faults, each a step of a schedule.

    Attributes:
        cleaned: physical offsets before which all of a host's log is deleted, or may be.
        old: likewise of any; consumers may have been told that it is deleted.
    """

    def __init__(
        self, one: Round, network: Network, nodes: Sequence[BrokerNode], others: Sequence[str], promises: Promises
    ) -> None:
        """Prepare.

        Args:
            one: the round.
            network: of all machines.
            nodes: the brokers.
            others: other hosts.
            promises: told of what may be lost.
        """
        self.cleaned: Counter[str] = Counter()
        self.old = 0
        self._one, self._network, self._nodes, self._others, self._promises = one, network, nodes, others, promises
        self._dice: random.Random = one.dice

    def steps(self) -> list[tuple[int, Callable[[], None]]]:
        """All of them, and how likely each is."""
        return [
            (4, self.cut), (4, self.part), (4, self.heal), (3, self.halve), (3, self.hang), (2, self.fail),
            (3, self.fill), (2, self.jump), (2, self.clean),
        ]  # fmt: skip

    # --- the network --------------------------------------------------------------------------
    def _pair(self) -> list[str]:
        """Two hosts."""
        return self._dice.sample([*(node.host for node in self._nodes), self._dice.choice(self._others)], 2)

    def cut(self) -> None:
        self._one.fault()
        self._network.cut(*self._pair())

    def halve(self) -> None:
        self._one.fault()
        self._network.halve(*self._pair())

    def part(self) -> None:
        self._one.fault()
        source, target = self._pair()
        self._network.bar(source, target)
        if self._dice.random() < 0.7:
            self._network.bar(target, source)

    def heal(self) -> None:
        self._network.heal()

    # --- brokers ------------------------------------------------------------------------------
    def up(self) -> BrokerNode | None:
        """A broker, if it is up."""
        node = self._dice.choice(self._nodes)
        return node if node.broker is not None else None

    def hang(self) -> None:
        if (node := self.up()) is not None:
            self._one.fault()
            node.threads.is_hung = True

    def fail(self) -> None:
        if (node := self.up()) is not None:
            node.disk.break_rate = self._dice.choice([0.1, 1.0])
            self._promises.may_lose(node)

    def fill(self) -> None:
        if (node := self.up()) is not None:
            node.disk.lack_rate = self._dice.choice([0.0, 0.2, 1.0])

    def jump(self) -> None:
        self._one.fault()
        self._dice.choice(self._nodes).set_clock(self._dice.choice(_JUMPS_MS))

    def clean(self) -> None:
        """Retention deletes what it may, as if all were old."""
        if (node := self.up()) is not None and node.store.fault is None:
            for path in Path(node.store.config.commitlog_path).iterdir():
                os.utime(path, (1, 1))
            self._one.step(f"    {node.host}: {node.store.clean(node.clock_ms(), manually=True)}")
            self.cleaned[node.host] = node.store.min_physical_offset
            self.old = max(self.old, node.store.min_physical_offset)
