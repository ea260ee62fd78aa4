"""Quarantine of the files that a publication in place replaced: ``STORE/quarantine/NNNN``, until it is deleted."""

import os
import re
import shlex
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError
from rmq_offline.tasks.publish import sync_directory

QUARANTINE: Final = "quarantine"
_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)


def next_directory(root: Path) -> Path:
    """Return the path of the next numbered directory of a store's quarantine."""
    names = (path.name for path in (root / QUARANTINE).glob("*"))
    last = max((int(name) for name in names if _NUMBER.fullmatch(name)), default=0)
    return root / QUARANTINE / f"{last + 1:04d}"


class FormerFiles:
    """Directory of the quarantine for the files that a publication replaces; None as long as nothing was replaced."""

    def __init__(self, root: Path, directory: Path | None = None) -> None:
        """Name a quarantine of the store at ``root``: ``directory``, or that of the next free number."""
        self._root = root
        self._wanted = directory
        self.directory: Path | None = directory if directory is not None and directory.is_dir() else None

    def retain(self, replaced: Path) -> None:
        """Move a directory of replaced files to the quarantine; may be repeated after a kill.

        A file that the store has as a hard link was not replaced, and is deleted here: a broker that writes to it must
        not change the quarantine. Raises StoreError for a quarantine that is a link, which may lead anywhere.
        """
        if not replaced.is_dir():
            return
        for aside in replaced.glob("*.aside"):  # of a run that was killed between the renames of an exchange
            if not aside.with_suffix("").exists():
                aside.rename(aside.with_suffix(""))
        _drop_links(replaced, self._root)
        if not any(replaced.iterdir()):
            return
        if (self._root / QUARANTINE).is_symlink():
            raise StoreError(f"{self._root / QUARANTINE}: a symbolic link. Replace it by a directory")
        if self._wanted is None:
            self.directory = next_directory(self._root)
            self.directory.parent.mkdir(exist_ok=True)
            replaced.rename(self.directory)
        else:
            self.directory = self._wanted
            self.directory.mkdir(parents=True, exist_ok=True)
            _move_directories(replaced, self.directory)
        sync_directory(self.directory.parent)


def _drop_links(replaced: Path, root: Path) -> None:
    """Delete the names of files that the store has under the same path, and directories without any file."""
    for path, _, names in os.walk(replaced, topdown=False):
        directory = Path(path)
        for name in names:
            file = directory / name
            twin = root / file.relative_to(replaced)
            if twin.is_file() and not file.is_symlink() and twin.samefile(file):
                file.unlink()
        if directory != replaced and not any(directory.iterdir()):
            directory.rmdir()


def _move_directories(source: Path, target: Path) -> None:
    """Move directories into another one; an existing one was moved by a killed run."""
    for path in source.iterdir():
        if not os.path.lexists(target / path.name):
            path.rename(target / path.name)
    sync_directory(target)


def allocated_bytes(directory: Path) -> int:
    """Return the bytes on disk of a directory's files: those of queues and the Index are holes for the most part."""
    files = (Path(path) / name for path, _, names in os.walk(directory) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files)


def bring_back_some_command(root: Path, directory: Path) -> str:
    """Return the shell command that exchanges single queues, and the Index, for those that a repair has replaced."""
    former = shlex.quote(str(directory.relative_to(root)))
    undone = shlex.quote(str((directory.parent / "undone").relative_to(root)))
    return (
        f"cd {shlex.quote(str(root))} && (cd {former} && find . -type f -printf '%h\\n' | sort -u) | "
        f'while read -r d; do mkdir -p {undone}/"${{d%/*}}" "${{d%/*}}"; mv "$d" {undone}/"${{d%/*}}"/; '
        f'mv {former}/"$d" "${{d%/*}}"/; done'
    )


def bring_back_command(root: Path, directory: Path) -> str:
    """Return the shell command that exchanges a store's files for the files that a rebuild replaced."""
    names = sorted(path.name for path in directory.iterdir() if path.is_dir())
    former = f"{QUARANTINE}/{directory.name}"
    aside = f"{former}.new"
    old = " ".join(f"{former}/{name}" for name in names)
    return f"cd {shlex.quote(str(root))} && mkdir {aside} && mv {' '.join(names)} {aside}/ && mv {old} ."
