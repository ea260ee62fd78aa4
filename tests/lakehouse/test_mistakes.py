"""One clear error that names the thing, before anything is written."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from jobs import export_delta
from rmq_cli.export import export as export_command
from rmq_formats.errors import OptionError, RmqError, StoreError
from rmq_lakehouse.delta.files import newest_files
from rmq_lakehouse.stream import ExportCheckpoint
from rmq_offline.spark.job import run_job, spark_cause
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write

ONCE = ("--mode", "available-now")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--table or --typed"),
        (["--table", "t", "--topics", "A,,B"], "--topics 'A,,B'"),
        (["--table", "t", "--partition-by", "topic", "--cluster-by", "tags"], "--partition-by and --cluster-by"),
        (["--table", "t", *ONCE, "--ending-timestamp", "2026-01-01"], "has no end"),
        (["--table", "t", *ONCE, "--ending-offsets", '{"Odd":{"0":1}}'], "has no end"),
        (["--table", "t", "--starting-offsets", "latest"], "--starting-offsets 'latest': there would be nothing"),
        (["--table", "t", "--ending-offsets", "{"], "--ending-offsets '{': not JSON"),
        (["--table", "t", "--starting-offsets", '{"Odd":{"0":1}}'], "queue 0 of 'Odd', a topic that --topics does not"),
        (["--table", "t", "--starting-offsets-by-timestamp", "[]"], "--starting-offsets-by-timestamp '[]'"),
        (["--table", "t", "--starting-timestamp", "yesterday"], "--starting-timestamp 'yesterday'"),
        (["--table", "t", "--starting-physical-offset", "-1"], "--starting-physical-offset -1"),
        (["--table", "t", "--mode", "stream", "--trigger-interval", "often"], "--trigger-interval 'often'"),
        (["--table", "t", *ONCE, "--max-bytes-per-trigger", "much"], "--max-bytes-per-trigger 'much'"),
        (["--typed", "spec.toml", "--topics", "A"], "--topics needs --table"),
        (["--table", "t", "--typed", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--table", "t", "--retention", "0"], "--retention 0"),
        (["--table", "t", "--vacuum", "1"], "--vacuum 1: at least 168 hours"),
        (["--table", "t", "--vacuum", "87600001"], "--vacuum 87600001: at most 87600000 hours"),
        (["--table", "t", "--retention", "3650001"], "--retention 3650001: expected a number of days, 1 to 3650000"),
        (["--table", "a:b/t"], "a:b/t: Hadoop takes no ':' in names of files and directories"),
        (["--table", "hdfs://host:8020/lake/a:b"], "--table hdfs://host:8020/lake/a:b: Hadoop takes no ':' in names"),
        (["--table", "t", "--dlq-table", "d:"], "d:: Hadoop takes no ':' in names"),
        (["--table", "t", "--checkpoint", "a:b", *ONCE], "--checkpoint a:b: Hadoop takes no ':' in names"),
        (["--table", "a:b", "--format", "iceberg", *ONCE], "a:b/_rmq_checkpoint: Hadoop takes no ':' in names"),
        (["--table", "t", "--cluster", "c"], "--cluster is for several stores"),
        (["--table", "t", "--max-messages-per-trigger", "5"], "is for --namesrv and --tier"),
        (["--table", "t", "--namesrv", "127.0.0.1:1"], "one of --store and --namesrv is needed"),
    ],
)
def test_arguments_are_refused_before_a_session_is_started(tmp_path: Path, arguments: list[str], said: str) -> None:
    write(tmp_path / "store", plain(1))
    given = export_delta.parser().parse_args(["--store", str(tmp_path / "store"), *arguments])
    with pytest.raises(OptionError) as told:
        export_delta.check(given)
    assert said in str(told.value)


@pytest.mark.parametrize("arguments", [["--table", "hdfs://host:8020/t"], ["--table", "a:b", "--format", "iceberg"]])
def test_ports_and_paths_of_iceberg_may_have_a_colon(tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path / "store", plain(1))
    export_delta.check(export_delta.parser().parse_args(["--store", str(tmp_path / "store"), *arguments]))


def test_a_batch_may_have_a_checkpoint_and_offsets_in_words(tmp_path: Path) -> None:
    write(tmp_path / "store", plain(1))
    arguments = ["--store", str(tmp_path / "store"), "--table", "t"]
    more = ["--checkpoint", "c", "--starting-offsets", "earliest", "--ending-offsets", "latest"]
    plainly, wordily = (export_delta.parser().parse_args([*arguments, *words]) for words in ([], more))
    assert export_delta.check(wordily).selection == export_delta.check(plainly).selection


@pytest.mark.parametrize(
    ("table", "dead_letters", "typed", "problem"),
    [
        ("t", None, "t", r"spec.toml: topic 'Odd': table .*/t: is the table of --table, too"),
        ("t", None, "link/../t", r"topic 'Odd': table .*: is the table of --table, too"),
        (None, "t", "link", r"topic 'Odd': table .*/link: is the table of --dlq-table, too"),
        ("t", "./t/", "odd", r"--dlq-table .*: is the table of --table, too"),
        ("s3a://lake/t", None, "s3a://lake/t/", r"topic 'Odd': table .*: is the table of --table, too"),
        ("t", None, "t/odd", r"topic 'Odd': table .*/t/odd: is within the table .*/t; give another one"),
    ],
)
def test_one_place_for_two_tables_is_refused_before_either_is_made(
    tmp_path: Path, table: str | None, dead_letters: str | None, typed: str, problem: str
) -> None:
    write(tmp_path / "store", plain(1))
    (tmp_path / "link").symlink_to(tmp_path / "t")
    spec = tmp_path / "spec.toml"
    spec.write_text(f'[[topics]]\ntopic = "Odd"\ntable = "{typed}"\nformat = "json"\nschema = "n int"\n')
    words = ["--store", str(tmp_path / "store"), "--typed", str(spec)]
    for option, name in (("--table", table), ("--dlq-table", dead_letters)):
        if name is not None:
            words += [option, name if "://" in name else f"{tmp_path}/{name}"]
    with pytest.raises(OptionError, match=problem):
        export_delta.check(export_delta.parser().parse_args(words))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("several", [False, True])
def test_an_export_writes_no_table_and_no_file_into_a_store(tmp_path: Path, table_format: str, several: bool) -> None:
    stores = [tmp_path / "a", tmp_path / "b"] if several else [tmp_path / "a"]
    for store in stores:
        write(store, plain(1))
    spec = tmp_path / "spec.toml"
    spec.write_text('[[topics]]\ntopic = "Odd"\ntable = "a/odd"\nformat = "json"\nschema = "n int"\n')
    inside, outside = f"{stores[-1]}/commitlog/x", ["--table", f"{tmp_path}/t"]
    words = [word for store in stores for word in ("--store", str(store))]
    words += ["--format", table_format, *(["--cluster", "c"] if several else [])]
    refused = {"--table": ["--table", str(stores[-1])], "--dlq-table": [*outside, "--dlq-table", inside]}
    refused["topic 'Odd': table"] = ["--typed", str(spec)]
    for option, more in refused.items():
        with pytest.raises(OptionError, match=f"{option} .*: is in the store, which is only read"):
            export_delta.check(export_delta.parser().parse_args([*words, *more]))


@pytest.mark.parametrize(
    ("report", "reason"),
    [("none/r.json", "no such directory"), (".", "is a directory"), ("store/commitlog/r.json", "is in the store")],
)
def test_a_report_that_cannot_be_written_is_an_error_before_the_job(
    tmp_path: Path, report: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "store", plain(1))
    words = ["--store", str(tmp_path / "store"), "--table", f"{tmp_path}/t", "--report", f"{tmp_path}/{report}"]
    with pytest.raises(SystemExit) as left:
        run_job(export_delta.parser(), export_delta.main, check=export_delta.check, arguments=words)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"export_delta.py: --report {tmp_path}/{report}: {reason}")
    with pytest.raises(OptionError, match=reason):
        export_command(SimpleNamespace(args=words))
    assert not (tmp_path / "t").exists()


def test_a_spec_is_done_as_it_was_checked(tmp_path: Path) -> None:
    write(tmp_path / "store", plain(2))
    spec = tmp_path / "spec.toml"
    spec.write_text('[[topics]]\ntopic = "Odd"\ntable = "odd"\nformat = "json"\nschema = "n int"\n')
    bounds = ["--starting-offsets", '{"Odd":{"0":0}}']
    given = export_delta.parser().parse_args(["--store", str(tmp_path / "store"), "--typed", str(spec), *bounds])
    options = export_delta.check(given)
    spec.unlink()
    assert options.requested_topics == ("Odd",)


@pytest.mark.parametrize(
    ("arguments", "named"), [(["--mode", "sometimes"], "sometimes"), (["--colour", "red"], "--colour")]
)
def test_an_unknown_mode_or_option_is_named_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        export_delta.parser().parse_args(["--store", "s", *arguments])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


@pytest.mark.spark
class TestWithATable:
    """What only a look at the store, the table and the checkpoint tells."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--topics", "Odd,Nowhere"), "has no topic 'Nowhere'"),
            (("--columns", "topic,colour"), "unknown column 'colour'"),
            (("--partition-by", "colour"), "unknown column 'colour'"),
            (("--partition-by", "topic,keys"), "--partition-by keys: its type array<string> makes no partitions"),
            (("--partition-by", "properties"), "--partition-by properties: its type map<string,string> makes no"),
            (("--partition-by", "body", "--format", "iceberg"), "--partition-by body: its type binary makes no"),
        ],
        ids=["topic", "column", "partition", "list", "map", "binary"],
    )
    def test_what_the_store_does_not_have_is_named(
        self, exporter: Exporter, arguments: tuple[str, ...], said: str
    ) -> None:
        write(exporter.store, plain(5))
        with pytest.raises(OptionError, match=said):
            exporter.run(*arguments)
        assert not exporter.table.exists()

    def test_a_place_that_is_not_empty_and_no_table_is_refused(self, exporter: Exporter) -> None:
        write(exporter.store, plain(5))
        kept = exporter.table / "notes.txt"
        kept.parent.mkdir()
        kept.write_text("mine")
        with pytest.raises(RmqError, match="table: the directory is not empty and contains no table"):
            exporter.run()
        assert [(path.name, path.read_text()) for path in exporter.table.iterdir()] == [("notes.txt", "mine")]

    def test_messages_as_they_are_do_not_land_among_decoded_bodies(self, exporter: Exporter) -> None:
        write(exporter.store, [("Odd", b'{"n":1}'), ("Odd", b"bad")])
        spec, dead = exporter.work / "spec.toml", exporter.work / "dead"
        spec.write_text('[[topics]]\ntopic = "Odd"\ntable = "table"\nformat = "json"\nschema = "n INT"\n')
        exporter.run("--typed", str(spec), "--dlq-table", str(dead), table=False)
        for name, topic in (("table", "Odd"), ("dead", "dead letters")):
            exporter.table = exporter.work / name
            before = sorted(exporter.table.rglob("*"))
            with pytest.raises(StoreError, match=f"{name}: its rmq.topic is {topic}, not none"):
                exporter.run("--cluster-by", "topic")
            assert sorted(exporter.table.rglob("*")) == before

    @pytest.mark.parametrize(
        ("topic", "said"),
        [
            ("__HIVE_DEFAULT_PARTITION__", "is the text that Spark writes for null, so it cannot be a partition value"),
            (
                f"%RETRY%{'g' * 239}",
                "has 246 characters: the directory name would have 256 bytes, at most 255 are allowed",
            ),
        ],
        ids=["null", "long"],
    )
    @pytest.mark.long
    def test_a_topic_that_makes_no_partition_is_named(self, exporter: Exporter, topic: str, said: str) -> None:
        write(exporter.store, [("Odd", b"1"), (topic, b"2")])
        with pytest.raises(PySparkException) as caught:
            exporter.run("--from-offset", "0", "--system-topics")
        assert (
            spark_cause(caught.value)
            == f"topic '{topic}' {said}. Choose --topics without this value, or other partitions"
        )
        assert exporter.offsets() == []
        assert exporter.run("--system-topics")[0]["messages"] == 2  # files that tasks write themselves

    def test_a_long_topic_lands_where_its_directory_may_have_the_name(self, exporter: Exporter) -> None:
        placed = write(exporter.store, [(f"%RETRY%{'g' * 238}", b"1")])
        exporter.run("--from-offset", "0", "--system-topics")
        assert exporter.offsets() == placed

    def test_a_checkpoint_of_another_store_is_refused(self, exporter: Exporter) -> None:
        checkpoint = exporter.work / "checkpoint"
        write(exporter.store, plain(5))
        exporter.run(*ONCE, "--checkpoint", str(checkpoint))
        other = Exporter(exporter.spark, exporter.work / "other", exporter.work / "else")
        write(other.store, plain(5))
        with pytest.raises(RmqError, match=r"a checkpoint of .*store, not of .*other"):
            other.run(*ONCE, "--checkpoint", str(checkpoint))
        (checkpoint / "rmq-export.json").unlink()
        with pytest.raises(RmqError, match="a checkpoint that no export wrote"):
            other.run(*ONCE, "--checkpoint", str(checkpoint))
        assert not other.table.exists()

    @pytest.mark.long
    def test_a_checkpoint_beyond_the_log_is_refused(self, exporter: Exporter) -> None:
        checkpoint = exporter.work / "checkpoint"
        write(exporter.store, plain(60))
        exporter.run(*ONCE, "--checkpoint", str(checkpoint))
        shutil.rmtree(exporter.store)
        shutil.rmtree(exporter.table)
        write(exporter.store, plain(5))
        with pytest.raises(RmqError, match=r"the CommitLog ends at .*, but the checkpoint was at"):
            exporter.run(*ONCE, "--checkpoint", str(checkpoint))
        assert exporter.offsets() == []

    def test_a_checkpoint_is_marked_once(self, exporter: Exporter) -> None:
        directory = exporter.work / "checkpoint"
        checkpoint = ExportCheckpoint(exporter.spark, str(directory))
        checkpoint.claim("mine")
        marked = (directory / "rmq-export.json").stat()
        checkpoint.claim("mine")
        checkpoint.check("mine")
        assert (directory / "rmq-export.json").stat().st_mtime_ns == marked.st_mtime_ns
        assert [path.name for path in directory.iterdir() if not path.name.startswith(".")] == ["rmq-export.json"]

    def test_a_log_that_lost_what_is_owed_or_was_landed_is_refused(self, exporter: Exporter) -> None:
        placed = write(exporter.store, plain(60))
        exporter.run("--ending-physical-offset", str(placed[5]))
        first, second, *_ = sorted((exporter.store / "commitlog").iterdir())
        first.unlink()
        with pytest.raises(RmqError, match=rf"bytes {placed[5]} to {int(second.name)} of the CommitLog were deleted"):
            exporter.run()
        report, code = exporter.run("--fail-on-data-loss", "false")
        assert (report["missing_bytes"], code) == (int(second.name) - placed[5], 1)
        there = placed[:5] + [offset for offset in placed if offset >= int(second.name)]
        assert exporter.offsets() == there
        shutil.rmtree(exporter.store)
        write(exporter.store, plain(5))
        with pytest.raises(RmqError, match=r"the CommitLog ends at .*, but .*table holds it up to"):
            exporter.run()
        assert exporter.offsets() == there

    @pytest.mark.long
    def test_tables_are_looked_after(self, exporter: Exporter) -> None:
        write(exporter.store, plain(8))  # of 2023
        exporter.run("--cluster-by", "queue_id,uniq_key", "--optimize", "--vacuum", "168")
        assert len(exporter.offsets()) == 8
        placed = write(exporter.store, plain(12))
        report, _ = exporter.run("--cluster-by", "queue_id,uniq_key", "--retention", "30")
        assert (report["messages"], report["ending_physical_offset"] > placed[-1]) == (4, True)
        assert exporter.offsets() == []
        assert exporter.run("--cluster-by", "queue_id,uniq_key")[0]["messages"] == 0


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_whose_files_are_gone_is_refused_before_anything_is_written(
    exporter: Exporter, table_format: str
) -> None:
    chosen = ("--format", table_format)
    write(exporter.store, plain(20))
    exporter.run(*chosen)
    write(exporter.store, plain(30))
    there = sorted(exporter.table.rglob("*"))
    for number in (0, 1):  # one of each topic
        one = sorted(exporter.table.rglob("*.parquet"))[number]
        kept = one.rename(exporter.work / "kept")
        with pytest.raises(StoreError, match=rf"table: data file .*{one.name} is missing. Restore the file, or give"):
            exporter.run(*chosen, *(ONCE if number else ()))
        kept.rename(one)
    assert sorted(exporter.table.rglob("*")) == there
    assert exporter.run(*chosen)[0]["messages"] == 10


def test_files_are_those_of_the_newest_commit_whose_own_the_table_still_has() -> None:
    commits = [
        [b'{"add":{"path":"a"}}', b'{"add":{"path":"b"}}', b'{"add":{"path":"c"}}'],
        [b'{"add":{"path":"d"}}'],
        [b'{"commitInfo":{}}', b'{"remove":{"path":"d"}}', b'{"remove":{"path":"b"}}', b'{"txn":{}}'],
    ]
    assert [newest_files(commits.__getitem__, version) for version in (0, 1, 2)] == [["a", "b", "c"], ["d"], ["a", "c"]]
    assert newest_files(lambda version: commits[version] if version == 2 else None, 2) == []
    assert newest_files(commits.__getitem__, -1) == []
