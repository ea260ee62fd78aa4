"""Fuzz targets: what loads files; they go through a directory in memory."""

import os
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from rmq_core.broker.config import load_config
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import OffsetTable, TopicConfigs
from rmq_core.store.config import StoreConfig
from rmq_core.store.files.config_files import load, load_numbers
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.watermark import CheckpointFiles, Watermark
from rmq_core.store.index.file import MappedIndexFile
from rmq_core.store.timer.log import TimerLog
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.codecs.timer import TimerUnit, encode_blank
from rmq_formats.errors import DecodeError, OptionError
from rmq_offline.repair.journal import read_pending_plan
from rmq_offline.replay.checkpoint import ReplayCheckpoint
from tests.lab.decoders.samples import files_under
from tests.lab.decoders.target import Target
from tests.lab.rounds import ViolationError
from tests.lab.run import memory
from tests.remoting import test_bodies as bodies

_TIMER_LOG_BYTES = 1000
_SLOTS, _ENTRIES = 50, 200
_CONF = b"brokerName=b\nflushDiskType=SYNC_FLUSH\nlistenPort=10911\nmessageDelayLevel=1s 5s\ndeleteWhen=04\n"
_TOML = b'brokerName = "b"\nlistenPort = 10911\nflushDiskType = "SYNC_FLUSH"\n'
_OFFSETS = b'{"offsetTable":{"T@cg":{0:5,1:7},"%RETRY%cg@cg":{0:1}}}'


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rmq-lab-loaders-", dir=memory())


def _through(name: str, load: Callable[[Path], object]) -> Callable[[bytes, random.Random], object]:
    """Write an input to a file, and load that."""

    def read(data: bytes, _dice: random.Random) -> object:
        root = Path(_directory().name)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        try:
            return load(root)
        finally:
            path.unlink()

    return read


def targets() -> list[Target]:
    """All of them."""
    mark = Watermark(sequence=3, log_flushed=9).encode()
    unit = TimerUnit(-1, 1, 1_700_000_000_000, 5000, 4096, 300, -77).encode()
    timer_log = b"".join(
        TimerUnit(number * 52 - 52, 1, 1_700_000_000_000, number, 4096, 300, -77).encode() for number in range(18)
    ) + encode_blank(_TIMER_LOG_BYTES - 18 * len(unit))
    index = files_under("exotic", "index/")
    return [
        Target("broker.conf", [_CONF], _through("b.conf", lambda root: _conf(root / "b.conf"))),
        Target("broker.toml", [_TOML], _through("b.toml", lambda root: _conf(root / "b.toml"))),
        Target("store settings", [_CONF], lambda data, _dice: _settings(data)),
        Target("topics.json of a broker", [bodies.TOPICS], _through("config/topics.json", lambda root: (
            _table(root / "config/topics.json", TopicConfigs)))),
        Target("consumerOffset.json", [_OFFSETS], _through("config/consumerOffset.json", lambda root: (
            _table(root / "config/consumerOffset.json", OffsetTable)))),
        Target("droppedTopics.json", [b'{"T": 4096, "U": 0}'], _through("config/droppedTopics.json", lambda root: (
            load_numbers(str(root / "config/droppedTopics.json"), Disk())))),
        Target("file watermark", [mark + mark, bytes(512) + mark], _through("watermark", _checkpoint_files)),
        Target("file checkpoint", [Checkpoint(1, 2, 3, 4).encode()], _through("checkpoint", _checkpoint_files)),
        Target("timerlog", [timer_log, unit * 3], _through(f"timerlog/{0:020d}", _read_timer_log)),
        Target("IndexFile", index, _through("index/20261121031411502", _search_index), share=0.4),
        Target("replay.json", [b'{"replay": "r", "next_physical_offset": 4096, "messages": 7}'],
               _through("replay.json", lambda root: ReplayCheckpoint(str(root), "r").load())),
        Target("plan of a repair", [b'{"stretches": [], "sizes": [], "moves": [], "configs": [], "rebuild": true}'],
               _through("quarantine/1/plan.json", read_pending_plan)),
    ]  # fmt: skip


def _table(path: Path, kind: type) -> object:
    return load(str(path), lambda text: decode_body(text.encode(), kind), Disk())


def _read_timer_log(root: Path) -> None:
    path = root / "timerlog" / f"{0:020d}"
    os.truncate(path, _TIMER_LOG_BYTES)
    log = TimerLog(str(path.parent), _TIMER_LOG_BYTES, Disk())
    try:
        end = log.sound_end(0)
        units = [log.read(position) for position in log.positions(0, end)]
        if None in units:
            raise ViolationError(f"a unit before the sound end, {end}, is none")
        for _ in log.blocks():
            pass
    finally:
        log.close()


def _search_index(root: Path) -> None:
    path = root / "index" / "20261121031411502"
    os.truncate(path, index_file_bytes(_SLOTS, _ENTRIES))
    file = MappedIndexFile(str(path), int(path.name), _SLOTS, _ENTRIES, Disk())
    if file.is_sound():
        for key_hash in range(_SLOTS):
            if len(list(file.find(key_hash, 0, 1 << 62))) > _ENTRIES:
                raise ViolationError("more entries than the file has")
        file.count_below(1 << 40)


def _conf(path: Path) -> None:
    load_config("/nowhere/store", path, environ={})


def _settings(data: bytes) -> None:
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    try:
        StoreConfig.from_properties({"storePathRootDir": "/nowhere"} | {key.strip(): text for key, _, text in lines})
    except (OptionError, DecodeError):
        return


def _checkpoint_files(root: Path) -> None:
    checkpoint_files = CheckpointFiles(str(root), Disk())
    checkpoint_files.trusted()
    checkpoint_files.checkpoint.min_timestamp_ms  # noqa: B018
