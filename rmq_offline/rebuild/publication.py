"""Publication of rebuilt queues and Index: harm to consumers is reported, and refused, before the publication.

In place, the new queues are compared with the existing ones, and harm that nobody has accepted is refused. Then the
directories are exchanged, the replaced ones go to the quarantine, and quarantine and store are compared again. If only
some queues are rebuilt, the files of the others are linked into the new directories, so that whole directories can be
exchanged at one instant; ``tasks.quarantine`` tells such links from replaced files.
"""

import errno
import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.paths import parse_queue_id
from rmq_formats.errors import OptionError
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild.changes import QueueChanges, QueueSelection, SameQueue, find_changes
from rmq_offline.tasks.job_steps import JobSteps
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.quarantine import FormerFiles, allocated_bytes, bring_back_command
from rmq_offline.tasks.work_area import LocalArea, WorkArea

_OF_QUEUES: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


@dataclass(frozen=True, slots=True)
class RepairContext:
    """Context of a rebuild within a repair. Its plan is made from the unrepaired store, under the repair's lock.

    Attributes:
        lost: (begin, end) physical offsets of the ranges that the repair overwrites.
        segments: the log's files before the repair, without moved ones; truncated ones with their new size.
        placeholder_ends: by queue, the queue offset one past the last placeholder.
    """

    lost: tuple[tuple[int, int], ...] = ()
    segments: tuple[Segment, ...] = ()
    placeholder_ends: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of a publication in place.

    Attributes:
        accept: queues (``TOPIC`` or ``TOPIC/ID``, or ``all``) whose messages or ends may be lost.
        quarantine: quarantine directory for the replaced files; None is the next number.
        is_plan: compare only; nothing is written into the store.
        work: directory of a plan's files; None is the temporary directory.
        repair: context of the repair that runs this rebuild; None outside a repair.
    """

    accept: frozenset[str] = frozenset()
    quarantine: Path | None = None
    is_plan: bool = False
    work: str | None = None
    repair: RepairContext | None = None


DEFAULT_PUBLISHING: Final = PublishOptions()


def parse_publish_options(arguments: Namespace) -> PublishOptions:
    """Build the options of a publication from the values of ``REBUILD_OPTIONS``. Raises OptionError."""
    if arguments.plan and arguments.out is not None:
        raise OptionError("--plan and --out: give one of them, since --out changes nothing in the store")
    if arguments.work is not None and not arguments.plan:
        raise OptionError("--work: only with --plan; the files of a rebuild are made where they are published")
    return PublishOptions(frozenset(arguments.accept or ()), is_plan=arguments.plan, work=arguments.work)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a publication, or of the plan of one.

    Attributes:
        planned: changes of what consumers get, compared before; None if nothing is replaced in place.
        verified: changes as compared afterwards, of quarantine and store; None if nothing was replaced.
        quarantine: directory with the replaced files; None without any.
        quarantine_bytes: size on disk of the replaced files.
    """

    is_plan: bool = False
    planned: QueueChanges | None = None
    verified: QueueChanges | None = None
    accept: frozenset[str] = frozenset()
    quarantine: str | None = None
    quarantine_bytes: int = 0
    bring_back: str | None = None

    @property
    def changes(self) -> QueueChanges | None:
        """The changes as they were verified, else as they are planned."""
        return self.planned if self.verified is None else self.verified

    @property
    def unaccepted_queues(self) -> list[str]:
        """Names of queues with a harmful change that nobody has accepted."""
        return [] if self.changes is None else [change.name for change in self.changes.needing_accept(self.accept)]

    @property
    def is_as_planned(self) -> bool:
        """Return whether the second comparison has the changes of the first one."""
        return self.verified is None or self.planned is None or self.verified.queues == self.planned.queues

    @property
    def is_clean(self) -> bool:
        """True if all harm to consumers is accepted, and the changes are as planned."""
        return not self.unaccepted_queues and self.is_as_planned

    def to_dict(self) -> dict[str, Any]:
        """Convert to the members of a JSON report."""
        return {
            "plan": self.is_plan,
            "changes": None if self.changes is None else self.changes.to_dict(),
            "verified": None if self.verified is None else self.is_as_planned,
            "taken_unaccepted": self.unaccepted_queues,
            "quarantine": self.quarantine,
            "quarantine_bytes": self.quarantine_bytes,
            "bring_back": self.bring_back,
        }


class Publication:
    """Publication of the files in a rebuild's work area."""

    def __init__(
        self,
        store: StoreFiles,
        segments: list[Segment],
        area: WorkArea,
        publishing: PublishOptions,
        *,
        is_in_place: bool,
    ) -> None:
        self._store = store
        self._segments = segments
        self._area = area
        self._publishing = publishing
        self._is_in_place = is_in_place
        self._same_queues: set[SameQueue] = set()
        self._former: FormerFiles | None = None
        if is_in_place and not publishing.is_plan and isinstance(area, LocalArea):
            self._former = FormerFiles(Path(store.root), publishing.quarantine)

    @property
    def _retain(self) -> Callable[[Path], None] | None:
        return None if self._former is None else self._former.retain

    def finish_interrupted(self, leftover: InterruptedRunPolicy) -> JobSteps[None]:
        """Complete an interrupted publication; see ``rebuild_store``."""
        if isinstance(self._area, LocalArea):
            self._area.finish_publishing(leftover, self._retain)
        else:
            yield from self._area.finish_publishing(leftover)

    def publish(self, directories: Sequence[str], queues: Collection[tuple[str, int]] | None) -> JobSteps[Outcome]:
        """Compare, publish, and compare again; or only compare, for a plan. If ``queues`` is None, all were rebuilt.

        Raises:
            NotAcceptedError: messages would leave their queues, or an end be lowered, and nobody has accepted it.
        """
        selection = QueueSelection(directories, queues)
        planned = self._compare(self._store.root, self._area.path("new"), selection) if self._is_in_place else None
        if self._publishing.is_plan:
            return Outcome(is_plan=True, planned=planned, accept=self._publishing.accept)
        if planned is not None:
            planned.refuse(self._store.root, self._publishing.accept)
        if isinstance(self._area, LocalArea):
            if queues is not None:
                link_other_queues(Path(self._store.root), Path(self._area.path("new")), directories, queues)
            self._area.publish(directories, self._retain)
        else:
            yield from self._area.publish(directories)
        return self._outcome(planned, selection)

    def _outcome(self, planned: QueueChanges | None, selection: QueueSelection) -> Outcome:
        quarantine = None if self._former is None else self._former.directory
        if quarantine is None:
            return Outcome(planned=planned, accept=self._publishing.accept)
        return Outcome(
            planned=planned,
            verified=self._compare(str(quarantine), self._store.root, selection),
            accept=self._publishing.accept,
            quarantine=str(quarantine),
            quarantine_bytes=allocated_bytes(quarantine),
            bring_back=bring_back_command(Path(self._store.root), quarantine),
        )

    def _compare(self, before: str, after: str, selection: QueueSelection) -> QueueChanges:
        repair = self._publishing.repair or RepairContext()
        return find_changes(
            self._store,
            self._segments,
            before,
            after,
            selection,
            repair.lost,
            repair.placeholder_ends if self._publishing.is_plan else {},
            lists_new=self._publishing.is_plan,
            same_queues=self._same_queues,
        )


@contextmanager
def lock_if_there(root: str, publishing: PublishOptions) -> Iterator[Callable[[], None]]:
    """Lock a store if the lock file exists; a plan does not create that file. Raises StoreLockedError.

    Within a repair the lock is the repair's: a second lock would release the first one too early.
    """
    is_lockable = publishing.repair is None and "://" not in root and Path(paths.lock_file(root)).exists()
    with store_lock(root) if is_lockable else nullcontext():
        yield lambda: None


def link_other_queues(root: Path, new: Path, directories: Sequence[str], rebuilt: Collection[tuple[str, int]]) -> None:
    """Link the files of all queues that were not rebuilt into the new directories. Raises OSError."""
    for name in directories:
        if name in _OF_QUEUES and (root / name).is_dir() and not (root / name / "CURRENT").is_file():
            for topic, queue in _queue_directories(root / name):
                queue_id = parse_queue_id(queue)
                if queue_id is None or (topic, queue_id) not in rebuilt:
                    source = root / name / topic / queue
                    is_elsewhere = any(path.is_symlink() for path in (source, source.parent, root / name))
                    _link_or_copy_files(source, new / name / topic / queue, copies=is_elsewhere)


def _queue_directories(tree: Path) -> Iterator[tuple[str, str]]:
    for topic in tree.iterdir():
        if topic.is_dir():
            yield from ((topic.name, queue.name) for queue in topic.iterdir() if queue.is_dir())


def _link_or_copy_files(source: Path, target: Path, *, copies: bool) -> None:
    """Link a queue's files, but copy files behind a symbolic link, which may lead to another store."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if copies:
            _copy_file(file, target / file.name)
            continue
        try:
            os.link(file, target / file.name, follow_symlinks=False)
        except FileExistsError:  # an earlier run, which was killed
            pass
        except OSError:  # a file system without hard links
            _copy_file(file, target / file.name)


def _copy_file(file: Path, target: Path) -> None:
    if not file.is_symlink() and not file.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    shutil.copy2(file, target, follow_symlinks=False)
