"""Verification of the controller mode's files: sound ones are, and what disagrees with the log is found."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.controller import Epoch, encode_epochs
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions

Golden = Callable[[str], Path]
SECOND = 93229  # where the second epoch of the golden store begins


def found(store: Path) -> list[Finding]:
    report = verify_store(str(store), VerifyOptions(), ProcessRunner(1))
    return [item for item in report.findings if item.kind.severity is not Severity.INFO]


def codes(store: Path) -> set[str]:
    return {item.kind.code for item in found(store)}


def write(store: Path, *epochs: tuple[int, int]) -> None:
    (store / "epochFileCheckpoint").write_text(encode_epochs(tuple(Epoch(*epoch) for epoch in epochs)))


def log_end(store: Path) -> int:
    return len((store / "commitlog" / f"{0:020d}").read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("splits", [1, 5])
def test_java_s_files_are_sound(splits: int, golden: Golden) -> None:
    report = verify_store(str(golden("controller") / "store"), VerifyOptions(), ProcessRunner(splits))
    assert report.is_clean, report.counts
    assert not any(kind.code.endswith("not_checked") for kind in report.counts)


def test_epochs_may_begin_where_records_begin_and_at_the_log_s_end(golden_copy: Golden) -> None:
    store = golden_copy("controller")
    first_end = int.from_bytes((store / "commitlog" / f"{0:020d}").read_bytes()[:4], "big")
    write(store, (1, 0), (2, first_end), (3, first_end), (7, SECOND), (9, log_end(store)))
    assert codes(store) == set()


@pytest.mark.parametrize(
    ("epochs", "detail"),
    [
        ([(1, 0), (1, SECOND)], "epoch 1 does not rise"),
        ([(5, 0), (4, SECOND)], "epoch 4 does not rise"),
        ([(1, SECOND), (2, 0)], "epoch 2 begins before the one before it"),
        ([(1, 0), (2, SECOND + 4)], "epoch 2 begins within a record"),
        ([(1, 0), (2, SECOND - 1)], "epoch 2 begins within a record"),
    ],
)
def test_epochs_that_cannot_be_are_told(epochs: list, detail: str, golden_copy: Golden) -> None:
    store = golden_copy("controller")
    write(store, *epochs)
    (finding,) = found(store)
    assert (finding.kind.code, finding.detail) == ("controller.epoch", detail)
    assert finding.path == str(store / "epochFileCheckpoint")
    assert finding.physical_offset == epochs[1][1]


def test_an_epoch_beyond_the_log_is_told(golden_copy: Golden) -> None:
    store = golden_copy("controller")
    write(store, (1, 0), (2, log_end(store) + 1))
    (finding,) = found(store)
    assert finding.kind.code == "controller.epoch.beyond"
    assert finding.expected == f"at most {log_end(store)}"


def test_damage_of_the_log_is_no_fault_of_the_epochs(golden_copy: Golden) -> None:
    store = golden_copy("controller")
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(SECOND)
        file.write(b"\xff" * 12)
    assert not any(code.startswith("controller") for code in codes(store))


@pytest.mark.parametrize("at", range(25))
def test_each_byte_of_the_epochs_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("controller")
    path = store / "epochFileCheckpoint"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x01
    path.write_bytes(data)
    assert codes(store) == {"controller.epoch_file"}


def test_a_backup_is_looked_at_where_it_is_taken(golden_copy: Golden) -> None:
    store = golden_copy("controller")
    path = store / "epochFileCheckpoint"
    write(store, (1, 0), (2, SECOND + 4))
    path.rename(f"{path}.bak")
    path.write_text("1\n2\n3-4\n")
    first, second = sorted(found(store), key=lambda item: item.kind.code)
    assert (first.kind.code, first.path) == ("controller.epoch", f"{path}.bak")
    assert (second.kind.code, second.detail.endswith("; a broker takes its .bak")) == ("controller.epoch_file", True)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"golden-a", b"GoldenCluster#golden-a#one", bytes(1 << 21)], ids=range(5)
)
def test_an_identity_that_is_none_is_told(data: bytes, golden_copy: Golden) -> None:
    store = golden_copy("controller")
    (store / "brokerIdentity").write_bytes(data)
    (finding,) = found(store)
    assert (finding.kind.code, finding.path) == ("controller.identity", str(store / "brokerIdentity"))


def test_a_directory_in_a_file_s_place_is_told(golden_copy: Golden) -> None:
    store = golden_copy("controller")
    for name in ("brokerIdentity", "epochFileCheckpoint"):
        (store / name).unlink()
        (store / name).mkdir()
    assert codes(store) == {"controller.identity", "controller.epoch_file"}
