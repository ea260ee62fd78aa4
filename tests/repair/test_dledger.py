"""Repair of a DLedger CommitLog: what is certain is written anew, what no member had committed is cut off."""

import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES, INDEX_UNIT_BYTES, EntryHead
from rmq_formats.errors import StoreLayoutError
from rmq_offline.repair import dledger_entries
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.report import RepairReport
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.cli.conftest import Rmq, rmq
from tests.conftest import MIXED_DELAY_LEVELS
from tests.interop import peer
from tests.layouts.conftest import Untouched, fingerprint, golden_copy, refusal, untouched
from tests.support.processes.dying_processes import run_and_die
from tests.support.stores.verified_stores import flip_at, patch
from tests.support.torture import TIMES

__all__ = ["golden_copy", "rmq", "untouched"]
OWN = "dledger-n0"
Golden = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_flush_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dledger_entries, "sync_file_system", lambda _directory: None)


def repair(store: Path) -> RepairReport:
    return repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True, accept=("all",))


def data_files(store: Path) -> list[Path]:
    return sorted((store / OWN / "data").iterdir())


def heads(path: Path) -> list[EntryHead]:
    """Headers of a file's entries."""
    data, at, found = path.read_bytes(), 0, []
    while len(data) - at >= ENTRY_HEAD_BYTES and (head := EntryHead.decode(data, at)).magic == 1:
        found.append(head)
        at += head.size
    return found


def contents(store: Path) -> dict[str, bytes]:
    """All files but the quarantine's and the lock's; of DLedger's index what units can be in."""
    found = {}
    for path in sorted(store.rglob("*")):
        name = str(path.relative_to(store))
        if path.is_file() and not name.startswith("quarantine/") and name != "lock":
            with path.open("rb") as file:
                found[name] = file.read(1 << 20)
    return found


def bend(store: Path) -> None:
    """Damage that a repair takes back to the byte: headers, an end mark, the index, the end of DLedger's checkpoint."""
    first, second = data_files(store)[:2]
    own = heads(first)
    for number, (at, width) in {3: (0, 4), 9: (8, 8), 20: (16, 8), 31: (24, 4), 40: (36, 4), 50: (44, 4)}.items():
        patch(first, own[number].pos - int(first.name) + at, b"\x5a" * width)
    patch(second, heads(second)[-1].pos - int(second.name) + heads(second)[-1].size, b"\xa5" * 8)
    index = store / OWN / "index" / f"{0:020d}"
    patch(index, 12 * INDEX_UNIT_BYTES + 3, b"junk")
    patch(index, 9000 * INDEX_UNIT_BYTES, b"\x01" * 64)
    text = (store / OWN / "checkpoint").read_text()
    (store / OWN / "checkpoint").write_text(text.replace("endIndex=", "endIndex=9"))


def tear(store: Path, entries: int = 5) -> int:
    """Cut the log within an entry, of which and of those behind it none was committed; the last index that is left."""
    last = next(path for path in reversed(data_files(store)) if heads(path))
    head = heads(last)[-entries]
    at = head.pos - int(last.name) + ENTRY_HEAD_BYTES + 60
    patch(last, at, bytes(last.stat().st_size - at - 64))
    index = head.index - 1
    (store / OWN / "checkpoint").write_text(f"committedIndex={index - 3}\nendIndex={index + entries}\n")
    return index


@pytest.mark.parametrize("name", ["dledger", "dledger_mixed"])
def test_what_is_certain_is_written_anew(name: str, golden_copy: Golden) -> None:
    store = golden_copy(name)
    repair(store)
    before = contents(store)
    bend(store)
    if name == "dledger_mixed":
        shutil.rmtree(store / OWN / "index")
    report = repair(store)
    assert report.is_clean, report.left
    # Bytes behind the last entry of the log may have been a message's: queues and Index are made anew.
    own = ("consumequeue/", OWN) if name == "dledger_mixed" else ("",)
    after = contents(store)
    assert {key: after.get(key) for key in before if key.startswith(own)} == {
        key: data for key, data in before.items() if key.startswith(own)
    }
    assert (store / OWN / "index" / f"{0:020d}").stat().st_size == 167_772_160
    assert repair(store).steps == ()


@pytest.mark.parametrize("is_cut", [False, True], ids=["zeros", "cut file"])
def test_what_was_not_committed_is_cut_off(is_cut: bool, rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    index = tear(store)
    last = data_files(store)[-1]
    if is_cut:
        data = last.read_bytes().rstrip(b"\0")
        last.write_bytes(data)
    assert rmq("repair", store, "--delay-levels", MIXED_DELAY_LEVELS).exit_code == 1
    result = rmq("repair", store, "--apply", "--accept", "all", "--delay-levels", MIXED_DELAY_LEVELS)
    assert "queue_offset" not in result.output
    assert heads(last)[-1].index == index
    assert not any(last.read_bytes()[heads(last)[-1].pos - int(last.name) + heads(last)[-1].size :])
    assert last.stat().st_size == data_files(store)[0].stat().st_size
    assert (store / OWN / "checkpoint").read_text() == f"committedIndex={index - 3}\nendIndex={index}\n"
    codes = {item.kind.code for item in repair(store).left}
    assert codes <= {
        "config.consumer_offset", "config.delay_offset", "config.offset.no_queue",
    }  # fmt: skip


@pytest.mark.parametrize("apply", [(), ("--apply",)], ids=["plan", "apply"])
@pytest.mark.long
def test_what_other_members_have_is_refused(
    apply: tuple[str, ...], rmq: Rmq, golden_copy: Golden, untouched: Untouched
) -> None:
    store = golden_copy("dledger")
    first, second, third = data_files(store)[:3]
    entry = heads(first)[30]
    committed = (store / OWN / "checkpoint").read_text()

    def record() -> None:
        flip_at(first, entry.pos + ENTRY_HEAD_BYTES + 100)

    def header_and_record() -> None:
        patch(first, entry.pos, b"\xff" * 200)

    def tail() -> None:
        tear(store)
        (store / OWN / "checkpoint").write_text(committed)

    def unknown() -> None:
        tear(store)
        (store / OWN / "checkpoint").write_text("what?\n")

    before = contents(store)
    for damage, words in (
        (record, "and entries follow; the other members of the group have the truth"),
        (header_and_record, "and entries follow"),
        (tail, "was committed"),
        (unknown, "checkpoint does not say what was committed"),
        (second.unlink, "files are missing before this one"),
        (partial(shutil.rmtree, store / OWN / "data"), "no CommitLog files"),
    ):
        damage()
        with untouched(store):
            assert words in refusal(rmq, "repair", store, *apply)
        assert not (store / "quarantine").exists()
        for name, data in before.items():
            if "/index/" not in name:
                (store / name).parent.mkdir(exist_ok=True)
                (store / name).write_bytes(data)
    assert third.exists()
    mixed = golden_copy("dledger_mixed")
    flip_at(mixed / "commitlog" / f"{0:020d}", 4)
    with untouched(mixed):
        assert "beside a DLedger CommitLog" in refusal(rmq, "repair", mixed, *apply)


def test_a_log_that_lost_committed_entries_is_reported_and_not_repaired(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    (store / OWN / "checkpoint").write_text("committedIndex=99999\nendIndex=99999\n")
    report = repair(store)
    assert {item.kind.code for item in report.left} == {"dledger.checkpoint"}
    assert report.steps == ()


@pytest.mark.torture
def test_killed_before_any_change_the_next_run_comes_to_the_same_end(golden_copy: Golden) -> None:
    """What changes entries and their index; ``test_kill`` has the rebuild behind it."""

    def fresh() -> Path:
        store = golden_copy("dledger")
        bend(store)
        tear(store)
        return store

    undisturbed = fresh()
    repair(undisturbed)
    expected = contents(undisturbed)
    for at in range(2, 60, max(1, 9 // TIMES)):
        shutil.rmtree(undisturbed)
        store = fresh()
        assert run_and_die(partial(repair, store), at) is None
        repair(store)
        assert contents(store) == expected, f"killed before change {at}"


@pytest.mark.torture
def test_damage_at_any_byte_is_repaired_or_refused(golden_copy: Golden) -> None:
    """Every 397th byte of a data file, and all of the small ones, where there is time for it."""
    store = golden_copy("dledger")
    repair(store)
    before = contents(store)
    places = [(path, at) for path in data_files(store)[:2] for at in range(0, path.stat().st_size, 397)]
    places += [(store / OWN / "checkpoint", at) for at in range(34)]
    for path, at in places[:: max(1, 150 // TIMES)]:
        flip_at(path, at)
        damaged = fingerprint(store)
        try:
            report = repair(store)
        except StoreLayoutError:
            assert fingerprint(store) == damaged
        else:
            assert report.is_clean or report.left
            assert not {item.kind.code for item in report.left} & {"dledger.entry.header", "dledger.index.unit"}
        shutil.rmtree(store / "quarantine", ignore_errors=True)
        now = contents(store)
        for name in now.keys() - before.keys():
            (store / name).unlink()
        for name, data in before.items():
            if now.get(name) != data:
                (store / name).parent.mkdir(parents=True, exist_ok=True)
                (store / name).write_bytes(data)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.long
@pytest.mark.peer
@pytest.mark.xdist_group("rocksdb_against_java")
def test_java_opens_what_was_repaired_and_changes_nothing(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    bend(store)
    index = tear(store)
    repair(store)
    before = contents(store)
    told = peer.run(
        "variant-rebuild",
        str(store),
        "mappedFileSizeCommitLog=262144",
        "mappedFileSizeConsumeQueue=2000",
        "maxHashSlotNum=500",
        "maxIndexNum=2000",
        f"messageDelayLevel={MIXED_DELAY_LEVELS}",
        "enableDLegerCommitLog=true",
        "dLegerGroup=golden-a",
        f"dLegerPeers=n0-127.0.0.1:{free_port()}",
        "dLegerSelfId=n0",
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=3000",
    )
    assert '"loaded": true' in told
    last = next(path for path in reversed(data_files(store)) if heads(path))
    assert heads(last)[-1].index == index
    end = int(last.name) + sum(head.size for head in heads(last))
    assert f'"max": {end}' in told
    after = contents(store)
    log = {
        name
        for name in before
        if name.startswith((f"{OWN}/data", f"{OWN}/index", "consumequeue/")) and any(before[name])
    }
    assert {name: after.get(name) == before[name] for name in log} == dict.fromkeys(log, True)
