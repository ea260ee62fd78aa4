"""The reports: JSON, tables of findings, and the page."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_formats.errors import OptionError
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, FindingList, Kind, Severity
from rmq_offline.verify.html.outputs import VerifyOutputs
from rmq_offline.verify.html.page import render_page
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.phases.scan import SegmentState
from rmq_offline.verify.report import FINDINGS_SCHEMA, VerifyReport, findings_table, write_findings
from tests.support.stores.verified_stores import copied, flip_at, patch, verify

WHEN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


@pytest.fixture(scope="module")
def report(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> VerifyReport:
    store = copied(golden("mixed") / "store", tmp_path_factory.mktemp("report") / "store")
    flip_at(sorted((store / "commitlog").iterdir())[0], 150_000)
    patch(store / "consumequeue" / "Orders" / "1" / f"{0:020d}", 25, b"\x05")
    flip_at(sorted((store / "index").iterdir())[1], 42, 1)
    return verify(store, VerifyOptions())


def made(findings: list[Finding], segments: int = 1, **more: Any) -> VerifyReport:
    collected = FindingList()
    for finding in findings:
        collected.add(finding)
    states = tuple(SegmentState(f"/s/commitlog/{n:020d}", n * 1000, 1000, 900, 5, 0, 0, ()) for n in range(segments))
    fields: dict[str, Any] = {
        "store": "/s", "messages": 5, "bytes": 500, "queues": 3, "units": 5, "index_paths": (), "index_entries": 0,
        "seconds": 0.5, "phases": {}, "segments": states, "findings": tuple(collected.kept), "counts": collected.counts,
    }  # fmt: skip
    return VerifyReport(**{**fields, **more})


def test_the_json_report_has_what_every_job_reports(report: VerifyReport) -> None:
    told = json.loads(json.dumps(report.to_dict()))
    assert told["job"] == "verify"
    assert {"store", "messages", "bytes", "seconds", "bytes_per_second", "findings", "finding_counts"} <= told.keys()
    assert told["clean"] is False
    assert sum(told["finding_counts"].values()) == told["findings_total"] == sum(told["severities"].values())
    assert told["findings_listed"] == len(told["findings"])
    assert {"code", "severity", "detail", "path", "remedy", "count", "expected", "actual"} <= told["findings"][0].keys()
    order = [Severity(item["severity"]) for item in told["findings"]]
    assert order == sorted(order, key=[Severity.ERROR, Severity.WARNING, Severity.INFO].index)


def test_a_list_of_findings_is_cut_and_says_so() -> None:
    kind = Kind("x.y", Severity.ERROR, "none")
    other = Kind("x.z", Severity.WARNING, "none")
    report = made([*(Finding(kind, str(n), count=2) for n in range(1500)), Finding(other, "last")])
    told = report.to_dict()
    assert (told["findings_total"], told["findings_listed"]) == (3001, 1000)
    assert told["finding_counts"] == {"x.y": 3000, "x.z": 1}
    assert "last" in {finding.detail for finding in report.findings}


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_findings_are_written_as_a_table(report: VerifyReport, tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "findings"
    write_findings(findings_table(report.findings), str(path), file_format)
    if file_format == "json":
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    else:
        table = pq.read_table(path)
        assert table.schema == FINDINGS_SCHEMA
        rows = table.to_pylist()
    assert rows == [finding.to_dict() for finding in report.findings]


def test_findings_with_names_that_are_no_text_are_written(tmp_path: Path) -> None:
    finding = Finding(finding_kinds.LOG_TOPIC, "bad \udcff", topic="\ud800", path="/s/\udcfe")
    for file_format in ("json", "parquet"):
        write_findings(findings_table([finding]), str(tmp_path / file_format), file_format)
    assert json.loads((tmp_path / "json").read_text("utf-8"))["topic"] == "?"
    assert "Store verification" in render_page(made([finding]), WHEN, "")


def test_tables_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--findings-format csv"):
        write_findings(findings_table([]), str(tmp_path / "x"), "csv")
    with pytest.raises(OptionError, match="--findings"):
        write_findings(findings_table([]), str(tmp_path / "no" / "x"), "json")
    with pytest.raises(OptionError, match=r"jobs/verify\.py"):
        VerifyOutputs("x", "delta").check(str(tmp_path), ("json", "parquet"))
    for option in ("findings", "html", "report"):
        with pytest.raises(OptionError, match=f"--{option}"):
            VerifyOutputs(**{option: str(tmp_path / "store" / "x")}).check(str(tmp_path / "store"), ("json",))
        with pytest.raises(OptionError, match=f"--{option}"):
            VerifyOutputs(**{option: str(tmp_path / "no" / "x")}).check(str(tmp_path / "store"), ("json",))


class Checker(HTMLParser):
    """Whether tags are closed in order, and what the page would fetch."""

    VOID = frozenset({"meta", "br", "rect", "path", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "action"}]
        if tag in {"script", "link", "img", "iframe"}:
            self.fetched.append(tag)
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert checker.fetched == []
    assert "url(" not in text
    assert "@import" not in text
    return checker


def test_the_page_is_one_file_that_fetches_nothing(report: VerifyReport) -> None:
    text = render_page(report, WHEN, "1.0")
    told = " ".join(checked(text).text)
    for kind, _ in report.kinds():
        assert kind.code in told
        assert kind.remedy in told
    assert "21 November 2026, 12:00 UTC" in told
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert str(Path(report.segments[0].path).name) in told
    assert "Queues with trouble" in told


def test_the_page_of_a_sound_store_says_so(golden: Callable[[str], Path]) -> None:
    report = verify(golden("crash") / "store", VerifyOptions())
    told = " ".join(checked(render_page(report, WHEN, "")).text)
    assert "The store is sound" in told
    assert "What was found" not in told
    assert "store.abort" in told


def test_names_out_of_a_store_cannot_write_html() -> None:
    evil = "<script>alert(1)</script>\"'&\x1b[2J"
    finding = Finding(finding_kinds.UNIT_DANGLING, evil, evil, 1, 1, evil, 1, 1, evil, evil)
    text = render_page(made([finding], store=evil), WHEN, evil)
    checked(text)
    assert "<script" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("segments", [0, 1, 48, 49, 5000])
def test_the_map_holds_any_number_of_files(segments: int) -> None:
    findings = [
        Finding(finding_kinds.LOG_TIME, "x", "/s/commitlog/00000000000000000000", 500),
        Finding(finding_kinds.SEGMENT_SIZE, "x", "/s/commitlog/00000000000000000001", 1500),
        Finding(finding_kinds.UNIT_DANGLING, "x", topic="T", queue_id=1),
        Finding(finding_kinds.INDEX_CHAIN, "x", "/s/index/2"),
    ]
    report = made(findings, segments, index_paths=("/s/index/1", "/s/index/2"))
    text = render_page(report, WHEN, "")
    checked(text)
    assert text.count('class="strip"') <= 52
    assert len(text) < 1_000_000


def test_a_page_with_very_many_findings_is_cut_and_says_so() -> None:
    findings = [Finding(finding_kinds.UNIT_DANGLING, str(n), topic=f"T{n}", queue_id=0, count=3) for n in range(900)]
    told = " ".join(checked(render_page(made(findings), WHEN, "")).text)
    assert "500 listed, covering 1,500 of 2,700" in told
    assert "60 of 900" in told


def test_every_kind_is_in_the_documents_table_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (error|warning|info) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {(kind.code, str(kind.severity)) for kind in finding_kinds.ALL}
    assert len({kind.code for kind in finding_kinds.ALL}) == len(finding_kinds.ALL)


def test_a_notebook_shows_the_verdict_and_the_kinds_of_faults(report: VerifyReport) -> None:
    shown = unescape(report._repr_html_())
    assert report.headline in shown
    faults = [kind for kind, _ in report.kinds() if kind.severity is not Severity.INFO]
    assert faults
    assert all(kind.code in shown and kind.remedy in shown for kind in faults)
    assert "<b>" not in made([], store="<b>")._repr_html_()
    assert "The store is sound" in made([])._repr_html_()
