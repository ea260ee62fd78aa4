"""What a broker's start reads of the log, as ``CommitLog#recoverNormally`` and ``#recoverAbnormally`` choose it."""

import shutil
from pathlib import Path

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_offline.diagnosis.recovery import StartEstimate, estimate_start, first_store_timestamp_ms
from tests.support.stores.verified_stores import FIRST_MS, copied, sound_store


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recovery") / "store"
    sound_store(root, 200)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


def estimate(store: Path) -> StartEstimate:
    estimate = estimate_start(open_store(str(store)), open_store(str(store)).segments)
    assert estimate is not None
    return estimate


def test_after_a_clean_shutdown_the_file_that_queues_reach_is_read(store: Path) -> None:
    found = estimate(store)
    assert (found.files, found.is_abnormal) == (1, False)
    assert 0 < found.bytes < 4096
    assert "clean" in found.reason
    shutil.rmtree(store / "consumequeue")
    assert estimate(store).files == len(list((store / "commitlog").iterdir()))


def test_after_a_kill_the_recovery_begins_at_the_checkpoint(store: Path) -> None:
    (store / "abort").touch()
    segments = open_store(str(store)).segments
    times = [first_store_timestamp_ms(LocalStorage(), segment) or 0 for segment in segments]
    assert times[0] == FIRST_MS
    assert estimate(store).files == len(segments)
    for number, time_ms in enumerate(times):
        for shift, begins in ((3000, number), (2999, max(0, number - 1))):
            checkpoint = Checkpoint(physic_msg_timestamp_ms=time_ms + shift, logics_msg_timestamp_ms=time_ms + 9000)
            (store / "checkpoint").write_bytes(checkpoint.encode())
            found = estimate(store)
            assert (found.files, found.is_abnormal) == (len(segments) - begins, True)
