"""Completes the new directories of a rebuild of some queues: the other queues' files are linked into them.

So whole directories can be exchanged at one instant, and the bytes of queues that are not rebuilt are never touched.
Links and former files are told apart afterwards, see ``tasks.former_files``.
"""

import errno
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from rmq_formats.codecs.paths import parse_queue_id

_OF_QUEUES: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


def link_other_queues(root: Path, new: Path, directories: Sequence[str], rebuilt: Collection[tuple[str, int]]) -> None:
    """Link the files of all queues that were not rebuilt into the new directories.

    Args:
        new: directory of the new ``consumequeue`` and so on.
        directories: that will be exchanged.

    Raises:
        OSError: a file cannot be linked or copied.
    """
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
    """Link a queue's files, or copy them: those that a symbolic link leads to are not the store's to link."""
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
