"""Credentials of the source ``rmq`` without a cluster: where they are read, and that nothing shows them."""

from pathlib import Path

import pytest
from pyspark import cloudpickle

from rmq_formats.errors import OptionError
from rmq_lakehouse.broker_state.options import OFFSETS_OPTIONS, metadata_options
from rmq_lakehouse.broker_state.sources import OffsetsSource, TopicsSource
from rmq_lakehouse.live.client import resolve_access
from rmq_lakehouse.live.options import read_options, write_options
from rmq_lakehouse.live.reader import COLUMNS, ClusterReader
from rmq_lakehouse.live.source import ClusterSource

SECRET, TOKEN = "s3cret-of-the-tests", "t0ken-of-the-tests"
READ = {"namesrv": "127.0.0.1:1", "subscribe": "T"}
WRITE = {"namesrv": "127.0.0.1:1", "topic": "T"}
GIVEN = {"accessKey": "alice", "secretKey": SECRET, "SECURITYTOKEN": TOKEN, "tls.client.keyPassword": SECRET}


def test_options_show_no_secret() -> None:
    offsets = metadata_options("rmq_offsets", {"namesrv": "127.0.0.1:1"} | GIVEN, OFFSETS_OPTIONS)
    for options in (read_options(READ | GIVEN), write_options(WRITE | GIVEN), offsets):
        assert options.access["secretKey"] == SECRET
        assert options.access["securityToken"] == TOKEN
        assert SECRET not in repr(options)
        assert TOKEN not in repr(options)


def test_the_driver_reads_files_and_variables_and_tasks_need_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_lakehouse.live.stream import ClusterStreamReader  # a Spark without it skips this test alone

    file = tmp_path / "tools.yml"
    file.touch(0o600)
    file.write_text(f"accessKey: alice\nsecretKey: {SECRET}\n")
    monkeypatch.setenv("RMQ_SECURITY_TOKEN", TOKEN)
    for kind in (ClusterReader, ClusterStreamReader):
        reader = kind(read_options(READ | {"credentialsFile": str(file)}), COLUMNS)
        task = cloudpickle.loads(cloudpickle.dumps(reader))
        assert task._options.access == {"accessKey": "alice", "secretKey": SECRET, "securityToken": TOKEN}
    offsets = OffsetsSource({"namesrv": "127.0.0.1:1", "credentialsFile": str(file)})
    of_table = cloudpickle.loads(cloudpickle.dumps(offsets.reader(offsets.schema())))
    assert of_table._access == task._options.access
    assert resolve_access(write_options(WRITE | {"credentialsFile": str(file)})).access == task._options.access


def test_what_cannot_be_used_is_told_by_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"secretKey: {SECRET}\n")
    file.chmod(0o644)
    for given, said in (
        ({"credentialsFile": str(file)}, r"other users may read or change the file \(mode 0644\)"),
        ({"secretKey": SECRET}, "secretKey requires accessKey"),
        ({"useTLS": "on"}, "useTLS cannot be 'on': expected true or false"),
        ({"accessKey": ""}, "accessKey is empty"),
    ):
        tables = TopicsSource({"namesrv": "127.0.0.1:1"} | given)
        with pytest.raises(OptionError, match=said):
            tables.reader(tables.schema())
        for make in (ClusterSource(READ | given).reader, ClusterSource(READ | given).streamReader):
            with pytest.raises(OptionError, match=said) as caught:
                make(COLUMNS)
            assert SECRET not in str(caught.value)
