"""What must hold of a store's files, told from its log alone; quick, for the lab asks millions of times."""

import os
from collections import OrderedDict

from rmq_core.store.commitlog.quarantine import TOMBSTONE_TOPIC
from rmq_core.store.config import StoreConfig
from tests.lab.rounds import Round
from tests.store.derived_from_log import Expected, expected
from tests.store.small_stores import log_records

Files = dict[str, bytes]
Records = list[tuple[int, bytes]]
_TOMBSTONE = TOMBSTONE_TOPIC.encode()
_KEPT = 500


def files_of(directory: str, prefix: str = "") -> Files:
    """All files under a directory by their relative names; at a fifth of ``pathlib``'s price."""
    found: Files = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                found |= files_of(entry.path, f"{prefix}{entry.name}/")
            else:
                with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123
                    found[f"{prefix}{entry.name}"] = file.read()
    return found


def below(files: Files, directory: str) -> Files:
    """Those of the files that are below a directory, by their names in it."""
    return {name.removeprefix(directory): data for name, data in files.items() if name.startswith(directory)}


class Expectations:
    """Derived files that logs ask for; many states of a disk have the same log."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Expected] = OrderedDict()

    def of(self, config: StoreConfig, files: Files) -> Expected:
        """The derived files of a store's log."""
        log = hash(frozenset(below(files, "commitlog/").items()))  # of contents; it decides nothing
        if log not in self._known:
            self._known[log] = expected(config)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[log]


def own_records(config: StoreConfig) -> Records:
    """The records of a log, without those that took the place of damage."""
    return [item for item in log_records(config) if _TOMBSTONE not in item[1]]


def judge_log(one: Round, config: StoreConfig, sent: Records, acknowledged: int) -> None:
    """All that was acknowledged is there, and nothing that was not sent."""
    there = own_records(config)
    wanted = dict(sent)
    for physical_offset, record in there:
        one.demand(wanted.get(physical_offset) == record, f"the record at {physical_offset} was never sent")
    lost = {at for at, record in sent if at + len(record) <= acknowledged} - {at for at, _ in there}
    one.demand(not lost, f"acknowledged up to {acknowledged}, and lost: {sorted(lost)}")


def judge_derived(
    one: Round, config: StoreConfig, files: Files, expectations: Expectations, *, index: bool = True
) -> None:
    """ConsumeQueue and Index are, byte for byte, what a rebuild makes of the log."""
    queues, indexes = expectations.of(config, files)
    there = below(files, "consumequeue/")
    one.demand(there.keys() == queues.keys(), f"queue files {_differing(there, queues)}")
    for name, image in queues.items():
        one.demand(there[name] == image, f"queue file {name} is not what its log makes")
    if index:
        found = [data for _, data in sorted(below(files, "index/").items())]
        one.demand(len(found) == len(indexes), f"{len(found)} IndexFiles, and not {len(indexes)}")
        one.demand(found == indexes, "an IndexFile is not what its log makes")


def _differing(there: Files, wanted: Files) -> str:
    return f"too many: {sorted(there.keys() - wanted.keys())}, too few: {sorted(wanted.keys() - there.keys())}"
