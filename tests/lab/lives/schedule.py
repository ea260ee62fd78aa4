"""A round: fifty stores live at the original, which then leaves each byte for byte; so do we.

That is: verify has no error, our broker's start leaves the queues, and a repair leaves what it does not repair.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import BLANK_BYTES
from rmq_formats.codecs.record_frame import FrameShape, frame_shape
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.findings import Severity
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.lab.lives.java import LifePlayers
from tests.lab.lives.script import FAULT, Life, write_life
from tests.lab.rounds import Round
from tests.store.small_stores import opened
from tests.support.oracles.commitlog_walk import Blank, Frame, walk
from tests.support.stores.verified_stores import flip_at, verify

STORES: Final = 50
_LOG: Final = "commitlog"
_QUEUES: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
_EXT: Final = "consumequeue_ext/"
Files = dict[str, bytes]


def play(one: Round) -> None:
    """Play one round."""
    names = [f"life{number:02}" for number in range(STORES)]
    lives = {name: write_life(one.dice, one.work, name) for name in names}
    with LifePlayers(one.work) as java:
        for name, life in lives.items():
            java.start(name, life)
        repaired = {}
        for name, life in lives.items():  # while Java plays those after it
            _tell_script(one, name, life)
            answer = java.wait(name, life)
            if answer.startswith("unsound"):
                continue  # units after a torn log's end stay in Java's files; or Java does not load its own store
            one.demand(answer == "ok", f"{name}: the original fails: {answer[:500]}")
            if _files(life.root) != _files(life.before):
                continue  # what the original itself changes at each start is no sound life
            one.case()
            write_config(life)
            _demand_sound(one, name, life.root)
            if not life.has_rocksdb:
                _demand_left_by_broker(one, java, name, life)
            if _repair(one, name, life):
                again = replace(life, lines=[])
                again.open()
                again.step("look", life.end_file)
                again.step("close")
                repaired[f"{name}.repaired"] = again, _files(life.root)
                java.start(f"{name}.repaired", again)
        for name, (life, files) in repaired.items():
            answer = java.wait(name, life)
            one.demand(answer == "ok", f"{name}: the original cannot read what was repaired: {answer}")
            one.demand(_files(life.root) == files, f"{name}: the original changes what was repaired")


def _tell_script(one: Round, name: str, life: Life) -> None:
    """Have a violation show the script of this life alone."""
    one.trace.clear()
    for line in life.lines:
        one.step(f"{name}: {line}")


def write_config(life: Life) -> None:
    """Write the config that a broker would have: the topics that were not deleted."""
    config = life.root / "config"
    config.mkdir(exist_ok=True)
    attributes = {"Batched": {"queue.type": "BatchCQ"}}
    topics = {
        name: {
            "attributes": attributes.get(name, {}),
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for name, count in life.topics.items()
        if not name.startswith("%LMQ%")
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}), encoding="utf-8")


def _demand_sound(one: Round, name: str, root: Path) -> None:
    report = verify(root, VerifyOptions())
    errors = [finding for finding in report.findings if finding.kind.severity is Severity.ERROR]
    texts = [f"{error.kind.code} {error.topic}/{error.queue_id} {error.detail}" for error in errors[:5]]
    one.demand(not errors, f"{name}: verify has {len(errors)} errors in a sound store: {texts}")


def _demand_left_by_broker(one: Round, java: LifePlayers, name: str, life: Life) -> None:
    """Start our broker's store on a copy, which stopped in order or was killed: each queue stays as it is.

    After a kill, records without a queue are dispatched, also those of topics that were deleted, as the original does.
    Where a start after a kill changes a queue, the original is asked what it makes of the same store.
    Units after the log's end, which the original cuts in memory only, are overwritten with zeros, and files without a
    unit at a queue's end are removed.
    """
    for crashed in (False, True):
        root = life.root.with_name(f"{name}.ours{crashed:d}")
        shutil.copytree(life.root, root)
        if crashed:
            (root / "abort").write_text("1", encoding="utf-8")
        config = StoreConfig.from_properties(life.settings | {"storePathRootDir": str(root)})
        one.demand(opened(config, int(time.time() * 1000)).shutdown(), f"{name}: our store does not shut down")
        log_end = int(life.end_file.read_text())  # our store overwrites what stands after it with zeros
        old, new = (_without_empty_files(_up_to(log_end, _files(path))) for path in (life.root, root))
        queues = {path.rpartition("/")[0] for path in old if path.split("/")[1] in life.topics} | {_LOG}
        changed = [
            path
            for path in sorted(old.keys() | new.keys())
            if old.get(path) != new.get(path)
            and not path.startswith(_EXT)  # it cuts what no unit names any more
            and (not crashed or path.rpartition("/")[0] in queues)
        ]
        if crashed and changed:
            expected = _without_empty_files(_up_to(log_end, _start_original_after_kill(one, java, name, life)))
            changed = [path for path in changed if expected.get(path) != new.get(path)]
        one.demand(not changed, f"{name}: our start {'after a kill ' * crashed}changes {changed[:5]}")
        shutil.rmtree(root)


def _start_original_after_kill(one: Round, java: LifePlayers, name: str, life: Life) -> Files:
    killed = replace(life, root=life.root.with_name(f"{name}.original"), lines=[])
    shutil.copytree(life.root, killed.root)
    (killed.root / "abort").write_text("1", encoding="utf-8")
    killed.open()
    killed.step("close")
    java.start(killed.root.name, killed)
    answer = java.wait(killed.root.name, killed)
    one.demand(answer == "ok", f"{name}: the original does not start after a kill: {answer[:500]}")
    return _files(killed.root)


def _up_to(log_end: int, files: Files) -> Files:
    """Cut the files of the log at its end, and replace the units of queues after it by zeros."""
    return {path: _part_up_to(log_end, path, data) for path, data in files.items()}


def _without_empty_files(files: Files) -> Files:
    """Leave out a queue's files of zeros after its first file, in which it has no unit."""
    first = {path.rpartition("/")[0]: path for path in sorted(files, reverse=True)}
    return {
        path: data
        for path, data in files.items()
        if any(data) or not path.startswith(f"{_QUEUES[0]}/") or path == first[path.rpartition("/")[0]]
    }


def _part_up_to(log_end: int, path: str, data: bytes) -> bytes:
    if path.startswith(f"{_LOG}/"):
        return data[: max(0, log_end - int(Path(path).name))]
    if not path.startswith(f"{_QUEUES[0]}/"):
        return data
    units = np.frombuffer(data, dtype=UNIT_DTYPE).copy()
    units[units["physical_offset"] >= log_end] = 0
    return units.tobytes()


def _repair(one: Round, name: str, life: Life) -> bool:
    """Damage one message of the topic that is there for it, and repair the store; False where it has none."""
    before, life.root = life.root, life.root.with_name(f"{name}.repaired")  # Java still has the files of its own open
    shutil.copytree(before, life.root)
    target = _body_of_fault(one, life.root, int(life.end_file.read_text()))
    if target is None:
        return False
    file, position, record, size = target
    _tell_script(one, name, life)
    one.step(f"{name}: bit of {file.name} at {position}")
    flip_at(file, position, 1 << one.dice.randrange(8))
    one.fault()
    report = repair_store(str(life.root), VerifyOptions(), ProcessRunner(1), apply=True)
    errors = [finding for finding in report.left if finding.kind.severity is Severity.ERROR]
    one.demand(not errors, f"{name}: repair leaves {errors[:3]}")
    log_end = int(life.end_file.read_text())
    old, new = (_until_end_marks(_files(root)) for root in (before, life.root))
    log = f"{_LOG}/{file.name}"
    for path in old.keys() & new.keys():
        if path.startswith(f"{_LOG}/") and not any(new[path][max(0, log_end - int(Path(path).name)) :]):
            log_part = _part_up_to(log_end, path, old[path])  # a repair clears a torn tail, as it says
            old[path] = log_part.ljust(len(new[path]), b"\0")
    one.demand(_cut(old.pop(log), record, size) == _cut(new.pop(log), record, size), f"{name}: the log is changed")
    old, new = _without_fault(old), _without_fault(new)
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    one.demand(not changed, f"{name}: a repair of {FAULT} changes {changed[:5]}")
    return True


def _body_of_fault(one: Round, root: Path, log_end: int) -> tuple[Path, int, int, int] | None:
    """Choose a byte of a body in mid-log, of the topic Fault: its file and position; the record's position and size."""
    places = []
    for file in sorted((root / _LOG).iterdir()):
        data = memoryview(file.read_bytes())
        for item in walk(data, int(file.name)):
            shape = frame_shape(data, item.position, item.physical_offset) if isinstance(item, Frame) else None
            if isinstance(shape, FrameShape) and item.physical_offset < log_end:
                topic = bytes(data[shape.topic_at : shape.topic_at + shape.topic_bytes]).decode()
                places.append((topic, file, shape.body_at, shape.position, shape.size))
    faults = [place[1:] for place in places[:-1] if place[0] == FAULT]
    return one.dice.choice(faults) if faults else None


def _until_end_marks(files: Files) -> Files:
    """Return the files, those of the log up to their end marks: a repair clears the bytes after them, as it says."""
    return {path: data[: _end_of_blank(path, data)] if path.startswith(_LOG) else data for path, data in files.items()}


def _end_of_blank(path: str, data: bytes) -> int:
    begin = int(Path(path).name)
    blanks = [item for item in walk(memoryview(data), begin) if isinstance(item, Blank)]
    return blanks[-1].physical_offset - begin + BLANK_BYTES if blanks else len(data)


def _cut(data: bytes, position: int, size: int) -> bytes:
    return data[:position] + data[position + size :]


def _without_fault(files: Files) -> Files:
    return {path: data for path, data in files.items() if FAULT not in path}


def _files(root: Path) -> Files:
    """Bytes of log and queues; of a RocksDB its keys and values. Java may index the last message at each start."""
    database = open_store(str(root)).layouts.queue_database
    files = {}
    for tree in (_LOG, *_QUEUES):
        for path in (root / tree).rglob("*"):
            if path.is_file() and (database is None or not str(path).startswith(paths.consumequeue_dir(str(root)))):
                files[str(path.relative_to(root))] = path.read_bytes()
    if database is not None:
        with open_rocksdb(LocalStorage(), database, str(root)) as opened:
            for family in opened.families:
                files |= {f"rocksdb/{family}/{key!r}": value for key, value in opened.pairs(family)}
    return files
