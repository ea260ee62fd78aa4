"""Queues that are not rebuilt: linked into the new directories, or copied where a symbolic link leads elsewhere."""

import os
from pathlib import Path

import pytest

from rmq_offline.rebuild.publication import link_other_queues

NAME = "0" * 20


def queue_file(directory: Path) -> Path:
    directory.mkdir(parents=True)
    file = directory / NAME
    file.write_bytes(b"units")
    return file


def test_files_of_the_store_are_linked_and_those_of_rebuilt_queues_are_not(tmp_path: Path) -> None:
    kept = queue_file(tmp_path / "store/consumequeue/T/0")
    queue_file(tmp_path / "store/consumequeue/T/1")
    link_other_queues(tmp_path / "store", tmp_path / "new", ["consumequeue", "index"], {("T", 1)})
    assert kept.samefile(tmp_path / "new/consumequeue/T/0" / NAME)
    assert not (tmp_path / "new/consumequeue/T/1").exists()


@pytest.mark.parametrize("place", ["consumequeue", "consumequeue/T", "consumequeue/T/0"])
def test_files_that_a_link_leads_to_are_copied(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    file = queue_file(outside / "consumequeue/T/0")
    link = tmp_path / "store" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / place)
    link_other_queues(tmp_path / "store", tmp_path / "new", ["consumequeue"], set())
    assert (tmp_path / "new/consumequeue/T/0" / NAME).read_bytes() == b"units"
    assert file.stat().st_nlink == 1


def test_a_linked_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside/0").mkdir(parents=True)
    os.mkfifo(tmp_path / "outside/0" / NAME)
    (tmp_path / "store/consumequeue").mkdir(parents=True)
    (tmp_path / "store/consumequeue/T").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="not a regular file"):
        link_other_queues(tmp_path / "store", tmp_path / "new", ["consumequeue"], set())
