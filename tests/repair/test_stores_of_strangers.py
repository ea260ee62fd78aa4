"""A store is evidence, never instructions: whatever somebody has planted in it, nothing beside it changes."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.generate import generate_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.repair import journal
from rmq_offline.repair.job import repair_store
from rmq_offline.replay.checkpoint import ReplayCheckpoint
from rmq_offline.tasks import origin
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.derived import begin_derived, commit_derived
from tests.support.processes.dying_processes import run_and_die
from tests.support.stores import foreign_notes as plants
from tests.support.stores.foreign_notes import Plant, house, inventory, link, note, pipe, text
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import FILE_BYTES, REBUILT, SIZES, patch, sound_store
from tests.support.stores.written_stores import rows, write

Action = Callable[[Path, InterruptedRunPolicy], Any]
WORDS = [InterruptedRunPolicy.REFUSE, InterruptedRunPolicy.RESUME]


def rebuild(store: Path, leftover: InterruptedRunPolicy) -> None:
    rebuild_store(str(store), None, REBUILT, ProcessRunner(1), leftover=leftover)


def repair(store: Path, leftover: InterruptedRunPolicy, *, apply: bool = True) -> None:
    repair_store(str(store), SIZES, ProcessRunner(1), apply=apply, leftover=leftover)


def append(store: Path, leftover: InterruptedRunPolicy) -> None:
    write(store, [[rows(topic=["New"], body=[b"x"])]], file_bytes=FILE_BYTES, dispatch=REBUILT, leftover=leftover)


ACTIONS: dict[str, Action] = {"rebuild": rebuild, "repair": repair, "append": append}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store, to be copied."""
    root = tmp_path_factory.mktemp("sound") / "store"
    sound_store(root, 60)
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Orders":{},"Clicks":{}}}')
    (root / "checkpoint").write_bytes(bytes(4096))
    return root


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    """A store of one's own, with a fault in its log, and a house beside it."""
    root = Path(shutil.copytree(sound, tmp_path / "data" / "store"))
    patch(sorted((root / "commitlog").iterdir())[1], 500, b"junk" * 9)
    house(tmp_path)
    return root


def range_of(path: str, **changes: Any) -> dict[str, Any]:
    """A range of a plan that writes a sender's key."""
    written = b"ssh-ed25519 AAAA of-the-sender\n"
    return {
        "path": path, "file_offset": 0, "physical_offset": 0, "size": len(written), "held": 0, "code": "x",
        "detail": "x", "fill": "bytes", "store_timestamp_ms": 0, "places": [], "written": written.hex(), "copy": None,
    } | changes  # fmt: skip


def plan(**members: Any) -> Plant:
    """A plan of an interrupted repair."""
    levels = [1000, 5000]
    sizes = {
        "commitlog_file_bytes": FILE_BYTES, "consumequeue_file_bytes": 400, "consumequeue_ext_file_bytes": 0,
        "index_slots": 50, "index_entries": 30, "delay_levels_ms": levels, "tags_from": 1 << 62,
        "batchconsumequeue_file_bytes": 920,
    }  # fmt: skip
    whole = {
        "store_sizes": sizes, "stretches": [], "sizes": [], "moves": [], "configs": [], "rebuild": False,
        "live_topics": None, "checkpoint": False, "entries": None, "left": [],
    }  # fmt: skip
    return text("quarantine/0001/plan.json", whole | members)


def planted_by_inode(store: Path) -> None:
    """A note that names the operator's own directory by its inode, through a link."""
    inode = (store.parent.parent / "home" / "documents").stat().st_ino
    note(".rmq-rebuild", {"consumequeue": inode})(store)
    (store / ".rmq-rebuild" / "new" / "consumequeue").symlink_to("../../../../home/documents")


OUT = "../../home"  # the house, from the store
NAMES = [
    "../../home/documents", "../../home/.bashrc", "../ledger", "..", ".", "", "/etc", "consumequeue/../../../home",
    "commitlog/../index", "config", "lock", "CONSUMEQUEUE", "index\0",
]  # fmt: skip
LOG = f"commitlog/{0:020d}"
NOTES: dict[str, Plant] = {
    **{f"rebuild publishes {name!r}": note(".rmq-rebuild", {name: 1}) for name in [*NAMES, "commitlog"]},
    **{f"write publishes {name!r}": note(".rmq-write", {name: 1}) for name in NAMES},
    **{f"write retires {name!r}": note(".rmq-write", {"index": 1}, (name,)) for name in [*NAMES, "commitlog"]},
    "a rebuild that retires": note(".rmq-rebuild", {"index": 1}, ("checkpoint",)),
    "the operator's inode": planted_by_inode,
    "no names, and new files elsewhere": plants.both(
        note(".rmq-rebuild", {}), link(".rmq-rebuild/new", f"../{OUT}"), text("../../home/index.aside", 1)
    ),
    "old files elsewhere": plants.both(
        note(".rmq-rebuild", {}), link(".rmq-rebuild/new/consumequeue", f"../../{OUT}")
    ),
    "no names": note(".rmq-rebuild", {}),
    "an inode that is none": note(".rmq-rebuild", {"index": True}),
    "a work directory elsewhere": link(".rmq-rebuild", f"../{OUT}"),
    "a write's work directory elsewhere": link(".rmq-write", OUT),
    "new files elsewhere": plants.both(note(".rmq-rebuild", {"index": 1}), link(".rmq-rebuild/new", f"../{OUT}")),
    "leftovers elsewhere": link(".rmq-rebuild.published", OUT),
    "intermediate files elsewhere": link(".rmq-rebuild/spill", f"../{OUT}"),
    "a note elsewhere": link(".rmq-rebuild/publish.json", f"../{OUT}/.bashrc"),
    "a note that is a pipe": pipe(".rmq-rebuild/publish.json"),
    "a write's note that is a pipe": pipe(".rmq-write/publish.json"),
    "a plan that is a pipe": pipe(".rmq-rebuild/plan.json"),
    "a deep note": lambda store: (store / ".rmq-rebuild").mkdir()
    or ((store / ".rmq-rebuild" / "publish.json").write_text("[" * 100_000) and None),
    "a lock elsewhere": link("lock", f"{OUT}/made-by-a-lock"),
    "a lock that is a pipe": pipe("lock"),
    "a store's queues elsewhere": link("consumequeue", OUT),
    "an index elsewhere": link("index", f"{OUT}/ledger"),
    "config elsewhere": link("config", OUT),
    "a config file elsewhere": link("config/topics.json", f"../{OUT}/.bashrc"),
    "a config file in the making elsewhere": link("config/topics.json.part", f"../{OUT}/.bashrc"),
    "a checkpoint in the making elsewhere": link("checkpoint.part", f"{OUT}/.bashrc"),
    "a checkpoint elsewhere": link("checkpoint", f"{OUT}/.bashrc"),
    "a log elsewhere": link("commitlog", OUT),
    "a log file elsewhere": link(f"commitlog/{FILE_BYTES:020d}", f"../../aside-{FILE_BYTES:020d}"),
    "a log file that is a pipe": pipe(f"commitlog/{FILE_BYTES:020d}"),
    "a quarantine elsewhere": link("quarantine", OUT),
    "an unfinished repair elsewhere": link("quarantine/unfinished", f"../{OUT}"),
    "a repair elsewhere": plants.both(
        text("../../home/plan.json", {}), link("quarantine/0001", f"../{OUT}")
    ),
    "a repair's plan that is a pipe": pipe("quarantine/0001/plan.json"),
    "a repair's manifest that is a pipe": pipe("quarantine/0001/manifest.json"),
    **{
        f"a plan writes {path!r}": plan(stretches=[range_of(path)], sizes=[[path, 31]])
        for path in ("/etc/cron.d/x", "../../home/.bashrc", f"commitlog/../{OUT}/.bashrc", "config/x", "commitlog/x",
                     f"dledger-x/../{OUT}/.bashrc", "commitlog", "", f"commitlog//{0:020d}")
    },
    **{
        f"a plan moves {path!r}": plan(moves=[path])
        for path in ("../../home/documents", "/etc/passwd", "lock", "..", "quarantine", ".rmq-rebuild", "index/..")
    },
    **{
        f"a plan restores {path!r}": plan(configs=[path])
        for path in ("../../home/x.json", "config/../../home/x.json", "/x.json", "checkpoint", "config/a/b.json")
    },
    **{
        f"a plan makes {path!r}": plan(entries={"directory": path, "makes_index": True, "checkpoint": "x"})
        for path in ("../../home", "/etc", "commitlog", "dledger-x/data")
    },
    "a plan writes for ever": plan(stretches=[range_of(LOG, size=1 << 60, fill="filler", written="")]),
    "a plan writes before a file": plan(stretches=[range_of(LOG, file_offset=1 << 40)]),
    "a plan makes an exabyte": plan(sizes=[[LOG, 1 << 60]]),
    "a plan's range behind a link": plants.both(
        plan(stretches=[range_of(LOG)]), link(LOG, f"../{OUT}/.bashrc")
    ),
    "a plan's config behind a link": plants.both(
        plan(configs=["config/topics.json"]), link("config", OUT), text("../../home/topics.json.bak", {})
    ),
    "a plan's directory behind a link": plants.both(
        plan(entries={"directory": "dledger-x", "makes_index": True, "checkpoint": "committedIndex=1\nendIndex=1\n"}),
        link("dledger-x", OUT),
    ),
}  # fmt: skip


def actions_that_read(name: str) -> list[str]:
    """The actions that read a planted note or plan; whatever else is planted may concern all of them."""
    if name.startswith("write "):
        return ["append"]
    return ["repair"] if name.startswith("a plan ") else ["rebuild"] if name.startswith("rebuild ") else [*ACTIONS]


@pytest.mark.parametrize(("name", "action"), [(name, action) for name in NOTES for action in actions_that_read(name)])
def test_nothing_beside_a_store_changes(store: Path, name: str, action: str) -> None:
    NOTES[name](store)
    before = inventory(store.parent.parent / "home"), set(store.parent.parent.iterdir())
    log = tree(store.parent)
    for word in WORDS:
        with suppress(StoreError):
            ACTIONS[action](store, word)
    assert (inventory(store.parent.parent / "home"), set(store.parent.parent.iterdir())) == before
    outside = {path: data for path, data in log.items() if not path.startswith("store/")}
    assert {path: data for path, data in tree(store.parent).items() if not path.startswith("store/")} == outside


@pytest.mark.parametrize("action", ACTIONS)
def test_a_log_file_with_another_name_elsewhere_is_not_written_into(store: Path, tmp_path: Path, action: str) -> None:
    path = sorted((store / "commitlog").iterdir())[1]
    os.link(path, tmp_path / "home" / "backup")
    before = inventory(tmp_path / "home")
    with suppress(StoreError):
        ACTIONS[action](store, InterruptedRunPolicy.RESUME)
    assert inventory(tmp_path / "home") == before


def test_a_note_that_nobody_signed_needs_a_word(store: Path) -> None:
    fresh = store / ".rmq-rebuild" / "new" / "index"
    note(".rmq-rebuild", {})(store)
    fresh.mkdir()
    value = {"new": {"index": fresh.stat().st_ino}, "retired": []}  # as rmq 0.1.0 left it
    (store / ".rmq-rebuild" / "publish.json").write_text(json.dumps(value))
    before = tree(store / "index")
    with pytest.raises(StoreError, match=r"an interrupted publication of index has no origin"):
        rebuild(store, InterruptedRunPolicy.REFUSE)
    assert tree(store / "index") == before
    rebuild(store, InterruptedRunPolicy.RESUME)
    assert len(tree(store / "index")) == len(before)
    assert not (store / ".rmq-rebuild").exists()


def test_started_anew_a_note_is_set_aside_and_nothing_of_it_done(store: Path) -> None:
    note(".rmq-rebuild", {"../../home": 1})(store)
    rebuild(store, InterruptedRunPolicy.START_ANEW)
    assert sorted(path.name for path in store.glob(".rmq-rebuild*")) == [".rmq-rebuild.aside-1"]
    assert (store / ".rmq-rebuild.aside-1" / "publish.json").exists()


def killed_rebuild(store: Path) -> None:
    """Kill a rebuild when its note is there."""
    count = run_and_die(lambda: rebuild(Path(shutil.copytree(store, f"{store}-counted")), InterruptedRunPolicy.REFUSE))
    assert count is not None
    for at in range(count, 0, -1):
        run_and_die(lambda: rebuild(store, InterruptedRunPolicy.REFUSE), at)
        if (store / ".rmq-rebuild" / "publish.json").exists():
            shutil.rmtree(f"{store}-counted")
            return
    raise AssertionError("no kill left a note")


@pytest.mark.long
def test_a_note_of_another_place_or_time_needs_a_word(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_rebuild(store)
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    with pytest.raises(StoreError, match="was written for another directory"):
        rebuild(copy, InterruptedRunPolicy.REFUSE)
    for name, value, message in (
        ("boot_id", lambda: "another", "before this machine's last start"),
        ("_machine", lambda: "another", "on another machine"),
        ("NOTE_VERSION", 2, "by another version of rmq"),
        ("own_key", lambda: bytes(32), "has no seal of this user's key"),
        ("own_key", lambda: None, "has no seal of this user's key"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(origin, name, value)
            with pytest.raises(StoreError, match=message):
                rebuild(store, InterruptedRunPolicy.REFUSE)
    rebuild(store, InterruptedRunPolicy.REFUSE)
    assert not (store / ".rmq-rebuild").exists()


@pytest.mark.long
def test_a_changed_note_has_no_seal(store: Path) -> None:
    killed_rebuild(store)
    path = store / ".rmq-rebuild" / "publish.json"
    value = json.loads(path.read_text())
    value["new"]["consumequeue"] = 1
    path.write_text(json.dumps(value))
    with pytest.raises(StoreError, match="has no seal of this user's key"):
        rebuild(store, InterruptedRunPolicy.REFUSE)


def test_a_plan_that_nobody_signed_needs_a_word(store: Path) -> None:
    stop_before_the_change(store)
    path = store / "quarantine" / "0001" / "plan.json"
    value = json.loads(path.read_text())
    del value["origin"], value["seal"]  # as rmq 0.1.0 left it
    path.write_text(json.dumps(value))
    before = tree(store / "commitlog")
    for apply in (False, True):
        with pytest.raises(StoreError, match=r"plan.json: the plan of an interrupted repair .* has no origin"):
            repair(store, InterruptedRunPolicy.REFUSE, apply=apply)
    assert tree(store / "commitlog") == before
    repair(store, InterruptedRunPolicy.RESUME)
    assert tree(store / "commitlog") != before
    assert "seal" not in json.loads((store / "quarantine" / "0001" / "manifest.json").read_text())


def stop_before_the_change(store: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "apply_plan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            repair(store, InterruptedRunPolicy.REFUSE)


def test_a_plan_set_aside_is_made_again(store: Path) -> None:
    stop_before_the_change(store)
    repair(store, InterruptedRunPolicy.START_ANEW)
    assert (store / "quarantine" / "0001" / "plan.json.aside-1").exists()
    assert (store / "quarantine" / "0002" / "manifest.json").exists()


def sink(store: Path) -> None:
    begun = begin_derived(
        str(store), replace(REBUILT, consumequeue=False), overwrite=True, leftover=InterruptedRunPolicy.RESUME
    )
    commit_derived(begun, [])


def generated(store: Path) -> None:
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    generate_store(
        str(store),
        messages=10,
        body_bytes=10,
        topics=["T"],
        queues=1,
        keys=False,
        tags=False,
        commitlog_file_bytes=FILE_BYTES,
    )


def checkpointed(store: Path) -> None:
    ReplayCheckpoint(str(store / "config"), "x").save(1, 1)


PLACES = [
    ".rmq-rebuild", ".rmq-write", ".rmq-rebuild.published", ".rmq-write.published", "config", "lock", "index",
    "commitlog", "commitlog.generating", "config/topics.json", "config/topics.json.part", "config/topics.json.bak",
    "config/replay.json.part", "config/replay.json",
]  # fmt: skip


@pytest.mark.parametrize("action", [sink, generated, checkpointed])
@pytest.mark.parametrize("place", PLACES)
def test_no_other_writer_follows_a_link_either(store: Path, place: str, action: Callable[[Path], None]) -> None:
    up = "../" * place.count("/")
    link(place, f"{up}{OUT}/.bashrc" if "." in place.rpartition("/")[2][1:] or place == "lock" else f"{up}{OUT}")(store)
    before = inventory(store.parent.parent / "home")
    if action is checkpointed and place == "config":
        return  # the directory of a checkpoint is the operator's word
    with suppress(StoreError):
        action(store)
    assert inventory(store.parent.parent / "home") == before
