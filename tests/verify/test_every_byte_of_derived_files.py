"""Any byte changed in a ConsumeQueue unit, a filler, a zero behind it, or in an IndexFile is found."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.torture import TIMES
from tests.verify.byte_flips import Caught, caught, index_check, queue_check, unfound

pytestmark = pytest.mark.torture

STEP = max(1, 3 // TIMES)  # each byte, where there is time for it


@pytest.fixture
def exotic(golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Caught]:
    store = golden("exotic") / "store"
    return store, caught(store, monkeypatch)


def read(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()


@pytest.mark.parametrize("number", [0, 4, -1], ids=["first", "middle", "last"])
def test_of_an_index_file(exotic: tuple[Path, Caught], number: int) -> None:
    task = exotic[1].tasks[number]
    data = read(Path(task.path))
    judge = index_check(exotic[1], task, data)
    assert judge() == 0
    assert unfound(data, judge, range(len(data))) == []


def test_of_the_queues(exotic: tuple[Path, Caught]) -> None:
    store, runner = exotic
    assert len(runner.records) == 6
    for topic, queue_id in runner.records:
        files = {path: read(path) for path in sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())}
        judge = queue_check(runner, (topic, queue_id), files, {})
        assert judge() == 0
        for data in files.values():
            assert unfound(data, judge, range(len(data))) == []


def test_of_a_queue_and_its_ext_files(golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden("exotic_crc") / "store"
    runner = caught(store, monkeypatch)
    topic, queue_id = sorted(runner.records)[0]
    files, ext_files = (
        {path: read(path) for path in sorted((store / tree / topic / str(queue_id)).iterdir())}
        for tree in ("consumequeue", "consumequeue_ext")
    )
    judge = queue_check(runner, (topic, queue_id), files, ext_files)
    assert judge() == 0
    for data in files.values():
        assert unfound(data, judge, range(0, len(data), STEP)) == []
    for data in ext_files.values():
        used = int(np.flatnonzero(data)[-1]) + 1
        assert unfound(data, judge, [*range(0, used + 20, STEP), len(data) // 2, len(data) - 1]) == []
