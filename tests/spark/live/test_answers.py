"""The source and the sink at a broker that answers as a test says; without a Spark session."""

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rmq_core.client.pull.request import PullStatus
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record import MessageToStore, encode_record
from rmq_formats.errors import ClusterError, OptionError
from rmq_lakehouse.live.options import ClusterQueue, read_options, write_options
from rmq_lakehouse.live.plan import Span
from rmq_lakehouse.live.read import read_span
from rmq_lakehouse.live.write import write_rows
from tests.client.conftest import FakeCluster, fakes

__all__ = ["fakes"]
HOST = Host(bytes([127, 0, 0, 1]), 10911)
LENGTH, AT_ONCE = 40, 8


def record(offset: int) -> bytes:
    """A message of the queue, as the log has it."""
    message = MessageToStore(
        topic="T",
        queue_id=0,
        body=b"%d" % offset,
        born_timestamp_ms=1_700_000_000_000,
        born_host=HOST,
        store_host=HOST,
    )
    return encode_record(
        message, queue_offset=offset, physical_offset=offset * 1000, store_timestamp_ms=1_700_000_000_000
    )


def queue_without(gone: range) -> Callable[[RemotingCommand, Connection], RemotingCommand]:
    """Answers as of Java's getMessage after a file of the log was deleted: it goes on behind what it does not find."""

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        offset, wanted = int(command.ext_fields["queueOffset"]), int(command.ext_fields["maxMsgNums"])
        end = min(offset + min(wanted, AT_ONCE), LENGTH)
        body = b"".join(record(number) for number in range(offset, end) if number not in gone)
        fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(LENGTH), "nextBeginOffset": str(end)}
        status = PullStatus.FOUND if body else PullStatus.NO_MATCHED_MESSAGE
        return command.response(status.value, "", fields, body)

    return answer


async def offsets(fakes: FakeCluster, **more: str) -> list[int]:
    """The queue offsets that a task reads."""
    options = read_options({"namesrv": fakes.namesrv, "subscribe": "T", **more})
    span = Span(ClusterQueue("T", "a", 0), 0, LENGTH)
    batches = await asyncio.to_thread(lambda: list(read_span(span, options, ("queue_offset",))))
    return [offset for batch in batches for offset in batch["queue_offset"].to_pylist()]


@pytest.mark.parametrize("gone", [range(16), range(3), range(11, 13), range(9, 30), range(30, LENGTH), range(LENGTH)])
async def test_messages_that_a_broker_passes_over_are_an_error_or_left_out(fakes: FakeCluster, gone: range) -> None:
    fakes.brokers["a"].answer = queue_without(gone)
    with pytest.raises(ClusterError, match=rf"T a:0: offsets {gone[0]} to {gone[-1]} are missing: deleted while"):
        await offsets(fakes)
    left = [number for number in range(LENGTH) if number not in gone]
    assert await offsets(fakes, failOnDataLoss="false") == left
    assert await offsets(fakes, sql="a IS NULL") == left  # with a filter, holes are what it let not through


async def written(fakes: FakeCluster, **columns: Any) -> dict[str, str]:
    """The properties that a row gets on its way."""
    keys = pa.field("keys", pa.list_(pa.string()) if isinstance(columns.get("keys"), list) else pa.string())
    fields = [pa.field("body", pa.binary()), keys, pa.field("tags", pa.string())]
    schema = pa.schema([field for field in fields if field.name in {"body", *columns}])
    rows = pa.RecordBatch.from_pylist([{"body": b"x", **columns}], schema=schema)
    await asyncio.to_thread(write_rows, write_options({"namesrv": fakes.namesrv, "topic": "T"}), iter([rows]))
    (request,) = [one for broker in fakes.brokers.values() for one in broker.requests]
    return decode_properties(bytes(request.body)[20 + 1 + 2 :])


@pytest.mark.parametrize("columns", [{"tags": "a\x02DELAY\x0118"}, {"keys": "a\x02b"}, {"keys": ["a", "b\x02c"]}])
async def test_a_separator_in_keys_or_tags_is_refused(fakes: FakeCluster, columns: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="a property with a separator"):
        await written(fakes, **columns)
    assert not any(broker.requests for broker in fakes.brokers.values())


async def test_keys_that_are_null_are_left_out(fakes: FakeCluster) -> None:
    assert (await written(fakes, keys=["k1", None, "k2"], tags=None))["KEYS"] == "k1 k2"
