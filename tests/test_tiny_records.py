"""The smallest records that there are, through every way of reading."""

from pathlib import Path

from rmq_formats import Store
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.support.stores.store_files import write_commitlog


def test_records_shorter_than_the_longest_header_are_found_by_point_reads(tmp_path: Path) -> None:
    host = Host.parse("127.0.0.1:10911")
    messages = [
        MessageToStore(
            topic="T",
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_timestamp_ms=1_700_000_000_000,
            born_host=host,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"x",
            properties_bytes=b"",
        )
        for _ in range(50)
    ]
    offsets = write_commitlog(tmp_path / "store", messages, 4096)
    store = Store(str(tmp_path / "store"))
    rebuild_store(
        str(tmp_path / "store"),
        None,
        RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 20, ())),
        ProcessRunner(1),
    )
    assert [message.physical_offset for message in store.messages()] == offsets
    assert [message.physical_offset for message in store.messages(topic="T", queue_id=0)] == offsets
    for number, message in enumerate(store.messages()):
        assert [found.queue_offset for found in store.query(msg_id=message.msg_id)] == [number]
        found = store.query(topic="T", queue_id=0, offset=number)
        assert [hit.physical_offset for hit in found] == [offsets[number]]
