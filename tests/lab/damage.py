"""The part ``damage``: bits of a small store are flipped, anywhere; ``verify`` finds it, and nothing falls over it.

Not found may be what ``docs/verify.md`` publishes as not covered: fields of a record without a checksum of its own, the
checkpoint, and values in config that are as good as the ones before.
"""

import json
import tempfile
from functools import cache
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.record_frame import FrameShape, frame_shape
from rmq_formats.errors import RmqError
from rmq_formats.store import Store
from rmq_offline.verify.findings import Severity
from tests.lab.judged_store import Files, below, files_of
from tests.lab.rounds import Round
from tests.lab.run import memory
from tests.lab.stepped_store import SteppedStore
from tests.store.small_stores import QuickDisk, read_all
from tests.support.oracles.commitlog_walk import Blank, Frame, walk
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, flip_at, sound_store, verify
from tests.verify.test_header_coverage import fields, published

_FLIPS = 12  # in a round
_MESSAGES = 40
_LAST_MS = FIRST_MS + _MESSAGES - 1
_TOPICS = {"topicConfigTable": {name: {"topicName": name, "perm": 6} for name in ("Orders", "Clicks")}}
_OFFSETS = {"offsetTable": {"Orders@cg": {"0": 3, "1": 2}}}


def play(one: Round) -> None:
    """Flip bits, one after the other; each is taken back."""
    files, covered = _sound(), _covered()
    root = one.work / "store"
    _write(root, files)
    names = sorted(name for name, data in files.items() if data)
    log_files = [name for name in names if name.startswith("commitlog/")]
    for _ in range(_FLIPS):
        name = one.dice.choice(one.dice.choice([names, log_files]))
        at, mask = one.dice.randrange(len(files[name])), 1 << one.dice.randrange(8)
        one.step(f"{name}: bit {mask:#x} of byte {at}")
        flip_at(root / name, at, mask)
        one.case()
        one.fault()
        if name.startswith(("consumequeue/", "index/")) or (name, at) in covered:
            one.demand(_faults(root) > 0, "verify does not find it")
        else:
            _faults(root)
        if one.dice.random() < 0.2:
            _read(one, root)
        flip_at(root / name, at, mask)
        if one.dice.random() < 0.2:
            _open(one, files, name, at, mask)
    one.demand(_faults(root) == 0, "verify finds something in a sound store")


@cache
def _sound() -> Files:
    """A sound store's files; the same bytes in every process."""
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        root = Path(directory) / "store"
        sound_store(root, _MESSAGES)
        (root / "checkpoint").write_bytes(Checkpoint(_LAST_MS, _LAST_MS, _LAST_MS - 1, 0, 0).encode())
        (root / "config").mkdir()
        (root / "config" / "topics.json").write_text(json.dumps(_TOPICS))
        (root / "config" / "consumerOffset.json").write_text(json.dumps(_OFFSETS))
        return {name: data for name, data in files_of(str(root)).items() if not name.startswith(".")}


@cache
def _covered() -> frozenset[tuple[str, int]]:
    """Places in the log in which a flip must be found: see the table in ``docs/verify.md``."""
    verdicts, covered = published(), set()
    for name, data in below(_sound(), "commitlog/").items():
        end = 0
        for item in walk(data, int(name)):
            position = item.physical_offset - int(name)
            end = position + item.size
            if isinstance(item, Frame):
                shape = frame_shape(memoryview(data), position, item.physical_offset)
                assert isinstance(shape, FrameShape)
                covered |= {
                    (f"commitlog/{name}", position + place)
                    for field, places in _fields(data[position:end], shape)
                    if verdicts[field] == "always"
                    for place in places
                }
            elif isinstance(item, Blank):
                covered |= {(f"commitlog/{name}", place) for place in range(position, end)}
        covered |= {(f"commitlog/{name}", place) for place in range(end, len(data))}
    return frozenset(covered)


def _fields(record: bytes, shape: FrameShape) -> list[tuple[str, list[int]]]:
    marked = record if b"color\x01" in record else record + b"color\x01\x02"  # the page's record has a property more
    return [field for field in fields(marked, shape) if field[0] != "properties: others"]


def _write(root: Path, files: Files) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def _faults(root: Path) -> int:
    report = verify(root)
    return report.total(Severity.ERROR) + report.total(Severity.WARNING)


def _read(one: Round, root: Path) -> None:
    """Read the store at rest: messages, or one clear error."""
    store = Store(root)
    try:
        list(store.messages())
        for topic in store.topics():
            list(store.messages(topic))
            store.query(key="k7", topic=topic)
    except RmqError as error:
        one.demand("\n" not in str(error), f"an error of several lines: {error}")


def _open(one: Round, files: Files, name: str, at: int, mask: int) -> None:
    """A broker's store opens it, gives what it can, takes more, and is sound for itself the next time."""
    root = one.fresh("opened") / "store"
    data = bytearray(files[name])
    data[at] ^= mask
    _write(root, {**files, name: bytes(data)})
    config = StoreConfig(
        root=str(root),
        commitlog_file_bytes=FILE_BYTES,
        consumequeue_file_bytes=400,
        index_slots=50,
        index_entries=30,
        delay_levels="1s 5s",
    )
    try:
        for _ in range(2):
            stepped = SteppedStore(config, QuickDisk(), _LAST_MS + 1000)
            read_all(stepped.store)
            one.demand(stepped.shutdown(), "what was opened does not shut down in order")
    except RmqError as error:
        one.demand("\n" not in str(error), f"an error of several lines: {error}")
