"""Verification of DLedger's entries, index and state: sound stores are, and each damaged byte of a header is found."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES, INDEX_UNIT_BYTES, EntryHead
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.commitlog import LogCheck
from rmq_offline.verify.dledger_entries import repaired_terms
from rmq_offline.verify.findings import Finding, FindingList
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport

Golden = Callable[[str], Path]
DATA = f"dledger-n0/data/{0:020d}"
INDEX = f"dledger-n0/index/{0:020d}"


def verify(store: Path, workers: int = 1) -> VerifyReport:
    return verify_store(str(store), VerifyOptions(), ProcessRunner(workers))


def found(store: Path, code: str) -> list[Finding]:
    return [item for item in verify(store).findings if item.kind.code == code]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def heads(path: Path, count: int) -> list[EntryHead]:
    data, at, read = path.read_bytes(), 0, []
    while len(read) < count:
        read.append(EntryHead.decode(data, at))
        at += read[-1].size
    return read


@pytest.mark.parametrize("name", ["dledger", "dledger_crash", "dledger_mixed"])
@pytest.mark.parametrize("workers", [1, 4])
def test_stores_of_java_are_sound(name: str, workers: int, golden: Golden) -> None:
    report = verify(golden(name) / "store", workers)
    assert report.is_clean, report.counts


@pytest.mark.parametrize("at", range(ENTRY_HEAD_BYTES))
def test_each_byte_of_a_header_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    second = heads(store / DATA, 2)[1]
    change(store / DATA, second.pos + at, bytes([second.encode()[at] ^ 0x5A]))
    (finding,) = found(store, "dledger.entry.header")
    assert (finding.path, finding.physical_offset, finding.size) == (str(store / DATA), second.pos, second.size)
    codes = {item.kind.code for item in verify(store).findings if not item.kind.code.startswith("store.")}
    assert codes == {"dledger.entry.header"}  # the index has what the header should have


def test_entries_of_another_log_are_told(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    path = sorted((store / "dledger-n0/data").iterdir())[1]
    data, at = bytearray(path.read_bytes()), 0
    while (head := EntryHead.decode(data, at)).magic == 1:
        data[at + 8 : at + 16] = (head.index + 5).to_bytes(8, "big")
        at += head.size
    path.write_bytes(data)
    finding = found(store, "dledger.entry.order")[0]
    first = EntryHead.decode(data)
    assert finding.physical_offset == first.pos
    assert finding.actual == f"index {first.index}, term 0"


def test_a_term_that_falls_is_told(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    third = heads(store / DATA, 3)[2]
    change(store / DATA, third.pos + 16, (7).to_bytes(8, "big"))
    (finding,) = found(store, "dledger.entry.header")
    assert finding.physical_offset == third.pos
    assert finding.actual == f"index {third.index}, term 7"


def test_entries_lost_in_a_damaged_stretch_are_no_second_fault(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    second = heads(store / DATA, 2)[1]
    change(store / DATA, second.pos + ENTRY_HEAD_BYTES, b"\xff" * 16)
    codes = {item.kind.code for item in verify(store).findings}
    assert any(code.startswith("commitlog.") for code in codes)
    assert not any(code.startswith("dledger.") for code in codes)


@pytest.mark.parametrize("at", range(INDEX_UNIT_BYTES))
def test_each_byte_of_an_index_unit_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("dledger_mixed")
    with (store / INDEX).open("rb") as file:
        unit = file.read(10 * INDEX_UNIT_BYTES)[-INDEX_UNIT_BYTES:]
    change(store / INDEX, 9 * INDEX_UNIT_BYTES + at, bytes([unit[at] ^ 0x5A]))
    (finding,) = found(store, "dledger.index.unit")
    assert finding.detail.endswith("for entries 9 to 9")
    assert finding.count == 1


def test_findings_do_not_depend_on_the_windows_of_the_scan(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    change(store / INDEX, 9 * INDEX_UNIT_BYTES, bytes(200 * INDEX_UNIT_BYTES))
    fourth, later = (heads(store / DATA, 200)[number] for number in (3, 180))
    change(store / DATA, fourth.pos + 8, b"\x7f")  # its index
    change(store / DATA, later.pos + 40, b"\1")
    told = []
    for window_bytes in (8 << 10, 1 << 20):
        findings, path = FindingList(), store / DATA
        with (
            LocalStorage().open(str(path)) as file,
            closing(LogCheck(LocalStorage(), str(path), file, 0, ENTRY_HEAD_BYTES, findings)) as check,
        ):
            for batch in scan_segment(
                file,
                0,
                file.size_bytes,
                data_end=file.data_end(),
                head_bytes=ENTRY_HEAD_BYTES,
                window_bytes=window_bytes,
            ):
                check.add(batch)
            span = check.finish_entries()
        told.append((span, sorted((item.kind.code, item.physical_offset, item.count) for item in findings.kept)))
    small, large = told
    assert small == large
    assert [(code, at) for code, at, _ in small[1][:2]] == [
        ("dledger.entry.header", fourth.pos), ("dledger.entry.header", later.pos)
    ]  # fmt: skip
    assert [code for code, _, _ in small[1][2:]] == ["dledger.index.unit"]


def test_an_index_without_its_file_or_its_end_is_told(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    with (store / INDEX).open("r+b") as file:
        file.truncate(700 * INDEX_UNIT_BYTES + 5)
    (finding,) = found(store, "dledger.index.unit")
    assert finding.count == 724 - 700
    (store / INDEX).unlink()
    assert sum(item.count for item in found(store, "dledger.index.unit")) == 724


def test_units_behind_the_last_entry_are_told(golden_copy: Golden) -> None:
    store = golden_copy("dledger")
    change(store / INDEX, 724 * INDEX_UNIT_BYTES, b"\0\0\0\1" + b"\1" * 60)
    (finding,) = found(store, "dledger.index.surplus")
    assert finding.count == 2


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("checkpoint", "committedIndex=724\nendIndex=723\n", "dledger.checkpoint", "committedIndex"),
        ("checkpoint", "committedIndex=723\nendIndex=9999\n", "dledger.checkpoint", "endIndex"),
        ("checkpoint", "committedIndex=seven\n", "dledger.checkpoint", "no number"),
        ("checkpoint", "\0\0\0\0", "dledger.checkpoint", "no line of a properties file"),
        ("currterm", "currTerm=-1\n", "dledger.currterm", "currTerm"),
        ("currterm", "nonsense\n", "dledger.currterm", "no line of a properties file"),
    ],
)
def test_state_that_speaks_of_another_log_is_told(
    name: str, text: str, code: str, words: str, golden_copy: Golden
) -> None:
    store = golden_copy("dledger")
    (store / "dledger-n0" / name).write_text(text)
    (finding,) = found(store, code)
    assert words in finding.detail
    assert finding.path == str(store / "dledger-n0" / name)


def test_terms_that_do_not_fit_are_told_from_those_that_do() -> None:
    for terms, mended in (
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0, 9, 0, 0], [0, 0, 0, 0, 0]),
        ([3, 3, 3, 1, 3, 4, 4], [3, 3, 3, 3, 3, 4, 4]),
        ([9, 0, 0, 1], [0, 0, 0, 1]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
    ):
        assert repaired_terms(np.array(terms, dtype=np.int64)).tolist() == mended
    noise = np.arange(200, 0, -1)
    assert len(set(repaired_terms(noise).tolist())) == 1
