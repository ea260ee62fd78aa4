"""A publication whose power is cut: of what was not forced some is undone, and the next run ends it or begins anew."""

import itertools
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreError
from rmq_formats.storage.contained import root_directory
from rmq_offline.tasks import publish
from tests.support.processes.dying_processes import NoExchange
from tests.support.torture import rounds

NAMES = ("commitlog", "consumequeue", "index")
RETIRED = ("checkpoint", "index")
OLD = {"commitlog/file": "old", "consumequeue/file": "old", "index/file": "old", "checkpoint": "old"}


class PowerCutError(BaseException):
    """The power is gone."""


def full(name: Any, directory: int | None) -> Path:
    """The path of a name, which may be one of an open directory."""
    return Path(name) if directory is None else Path(f"/proc/self/fd/{directory}").readlink() / name


class Power:
    """Power that is cut before a step; of the names that were changed and not forced, some are as they were then."""

    def __init__(
        self, patch: pytest.MonkeyPatch, trash: Path, cut: int, source: random.Random, *, exchange: bool = True
    ) -> None:
        self.steps = 0
        self._trash, self._cut, self._source = trash, cut, source
        self._undo: list[tuple[set[Path], Callable[[], None]]] = []
        self._rename = os.rename
        swaps, unlink, fsync = publish._exchange, os.unlink, os.fsync

        def rename(path: Any, to: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            self._step()
            path, to = full(path, src_dir_fd), full(to, dst_dir_fd)
            had = to.read_bytes() if to.is_file() else None
            self._rename(path, to)

            def back() -> None:
                if to.exists():
                    self._rename(to, path)
                    if had is not None:
                        to.write_bytes(had)

            self._undo.append(({path.parent, to.parent}, back))

        def swap(new: int, target: int, name: str, shown: Path) -> None:
            self._step()
            swaps(new, target, name, shown)
            first, second = full(name, new), full(name, target)
            self._undo.append(({first.parent, second.parent}, lambda: swap_back(first, second)))

        def swap_back(first: Path, second: Path) -> None:
            with root_directory(first.parent) as new, root_directory(second.parent) as target:
                swaps(new, target, first.name, second)

        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            path = full(path, dir_fd)
            if path.exists():
                self._step()
                kept = path.read_bytes()
                unlink(path)
                self._undo.append(({path.parent}, lambda: path.write_bytes(kept) and None))

        def remove_tree(path: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> None:
            path = full(path, dir_fd)
            if path.exists():
                self._step()
                kept = self._trash / str(self.steps)
                self._rename(path, kept)

                def back() -> None:
                    path.mkdir(exist_ok=True)
                    for entry in kept.iterdir():
                        if self._source.randrange(3):
                            self._rename(entry, path / entry.name)

                self._undo.append((set(), back))

        def force(descriptor: int) -> None:
            self._step()
            fsync(descriptor)
            forced = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._undo = [entry for entry in self._undo if forced not in entry[0]]

        def force_all(_directory: Path) -> None:
            self._step()
            self._undo.clear()

        patch.setattr(os, "rename", rename)
        patch.setattr(os, "replace", rename)
        patch.setattr(os, "unlink", remove)
        patch.setattr(shutil, "rmtree", remove_tree)
        patch.setattr(os, "fsync", force)
        if exchange:
            patch.setattr(publish, "_exchange", swap)
        else:
            patch.setattr(publish, "_LIBC", NoExchange())
        patch.setattr(publish, "sync_file_system", force_all)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._cut:
            raise PowerCutError

    def lose(self) -> None:
        """Undo some of what was not forced."""
        for _, back in reversed(self._undo):
            if self._source.randrange(2):
                back()


def texts(root: Path) -> dict[str, str]:
    found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name: text for name, text in found.items() if not name.startswith("work")}


def a_work(root: Path) -> Path:
    for where, text in ((root / "work" / "new", "new"), (root, "old")):
        for name in NAMES:
            (where / name).mkdir(parents=True)
            (where / name / "file").write_text(text)
    (root / "checkpoint").write_text("old")
    return root / "work"


@pytest.mark.torture
@pytest.mark.parametrize("number", rounds(3))
@pytest.mark.parametrize("exchange", [True, False])
def test_the_target_is_never_half_published(tmp_path: Path, number: int, exchange: bool) -> None:
    source = random.Random(number)
    new = {f"{name}/file": "new" for name in NAMES}
    cut, ended = 0, False
    while not ended:
        cut += 1
        for again in range(8):
            root, trash = tmp_path / f"{cut}-{again}", tmp_path / f"trash-{cut}-{again}"
            work = a_work(root)
            trash.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                power = Power(patch, trash, cut, source, exchange=exchange)
                try:
                    publish.publish(work, root, NAMES, RETIRED)
                    ended = True
                except PowerCutError:
                    pass
            power.lose()
            was_noted = publish.finish_publishing(work, root)
            found = texts(root)
            assert found in (OLD, new), (cut, again)
            assert found == new or not was_noted
    assert cut > 12


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"new": {"index": "x"}, "retired": []}', "\0\0\0"])
def test_a_note_that_says_nothing_is_told_in_a_line(tmp_path: Path, text: str) -> None:
    work = a_work(tmp_path)
    (work / "publish.json").write_text(text)
    with pytest.raises(StoreError, match=r"publish.json: not a valid publication record .* Move .*work out of"):
        publish.finish_publishing(work, tmp_path)
    assert texts(tmp_path) == OLD


def test_a_plan_is_gone_before_the_files_that_it_needs(tmp_path: Path) -> None:
    for cut, seed in itertools.product(range(1, 6), range(8)):
        work, trash = tmp_path / f"{cut}-{seed}", tmp_path / f"trash-{cut}-{seed}"
        (work / "done").mkdir(parents=True)
        trash.mkdir()
        (work / "plan.json").write_text("{}")
        with pytest.MonkeyPatch.context() as patch:
            power = Power(patch, trash, cut, random.Random(seed))
            with suppress(PowerCutError):
                publish.clear_work(work, ["done"])
        power.lose()
        assert (work / "done").exists() or not (work / "plan.json").exists()
