"""Which stretches a read takes, and what it tells of those that are gone; options and their errors."""

import json
import socket

import numpy as np
import pyarrow as pa
import pytest

from rmq_core.client import Message, ProducerOptions
from rmq_core.client.producer.packet import Packer
from rmq_formats.arrow.messages import encode_messages, encode_property_maps
from rmq_formats.errors import ClusterError, OptionError
from rmq_formats.spark.options.values import EARLIEST
from rmq_lakehouse.live.client import ClusterConnection
from rmq_lakehouse.live.options import (
    ClusterQueue,
    ClusterQueueName,
    batch_only,
    queue_name,
    read_options,
    stream_only,
    write_options,
)
from rmq_lakehouse.live.plan import Span, check_present, find_queue, limit_ends, spans

A0, A1, B0 = ClusterQueue("T", "a", 0), ClusterQueue("T", "a", 1), ClusterQueue("T", "b", 0)
GIVEN = {"namesrv": "h:1", "subscribe": "T"}


def test_a_queue_is_a_task_and_more_where_more_are_wanted() -> None:
    begins, ends = {A0: 5, A1: 0, B0: 7}, {A0: 25, A1: 10, B0: 7}
    assert spans(begins, ends, 1) == [Span(A0, 5, 25), Span(A1, 0, 10)]
    many = spans(begins, ends, 6)
    assert [(one.begin, one.end) for one in many if one.queue == A0] == [(5, 10), (10, 15), (15, 20), (20, 25)]
    assert len(many) == 6


@pytest.mark.parametrize("limit", [1, 2, 7, 29, 30, 99])
def test_a_limit_is_shared_out_and_never_nothing(limit: int) -> None:
    begins, ends = {A0: 5, A1: 0, B0: 7}, {A0: 25, A1: 10, B0: 7}
    found = limit_ends(begins, ends, limit)
    assert sum(found[queue] - begins[queue] for queue in ends) == min(limit, 30)
    assert all(begins[queue] <= found[queue] <= ends[queue] for queue in ends)


def test_what_is_gone_is_an_error_or_told() -> None:
    bounds = {A0: (10, 20), A1: (0, 5)}
    with pytest.raises(ClusterError, match="T a:0: offsets 4 to 9 are missing"):
        check_present({A0: 4, A1: 0}, bounds, fails=True)
    with pytest.raises(ClusterError, match="T a:1: offsets 5 to 7 are missing"):
        check_present({A0: 10, A1: 8}, bounds, fails=True)
    begins, lost = check_present({A0: 4, A1: 8}, bounds, fails=False)
    assert begins == {A0: 10, A1: 5}
    assert len(lost) == 2


def test_the_number_of_a_queue_will_do_where_one_broker_has_it() -> None:
    queues = [A0, A1, B0]
    assert find_queue(queues, ClusterQueueName("T", None, 1)) == A1
    assert find_queue(queues, queue_name("T", "b:0")) == B0
    with pytest.raises(OptionError, match="queue 0 of 'T' is on several brokers: a:0, b:0"):
        find_queue(queues, ClusterQueueName("T", None, 0))
    with pytest.raises(OptionError, match="queue b:1 of 'T' is not among the queues"):
        find_queue(queues, queue_name("T", "b:1"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "T"}, "option namesrv of rmq is missing"),
        ({"namesrv": "h:1"}, "needs one of subscribe, subscribePattern and assign, not none"),
        ({**GIVEN, "assign": '{"T": [0]}'}, "not assign and subscribe"),
        ({**GIVEN, "startingOffset": "1"}, "unknown option 'startingOffset' of rmq"),
        ({**GIVEN, "startingOffsets": "first"}, "option startingOffsets of rmq cannot be 'first'"),
        ({**GIVEN, "startingOffsets": '{"T": {"0": -4}}'}, "offset -4"),
        ({**GIVEN, "startingOffsets": '{"T": {"x": 4}}'}, "expected broker:number, or number"),
        ({**GIVEN, "startingOffsets": "group"}, "option group of rmq is missing"),
        ({**GIVEN, "endingOffsets": "earliest"}, "leave something to read"),
        ({**GIVEN, "commitOffsetsToGroup": "true"}, "option group of rmq is missing"),
        ({**GIVEN, "tags": "A", "sql": "a = 1"}, "options tags and sql of rmq exclude each other"),
        ({**GIVEN, "tags": "||"}, "no tag"),
        ({**GIVEN, "sql": "a = = 1"}, "option sql of rmq cannot be 'a = = 1': Encountered"),
        ({**GIVEN, "endingOffsetsByTimestamp": '{"T": {"0": 1796019767}}'}, "1796019767 is seconds: 1796019767000"),
        ({**GIVEN, "startingOffsetsByTimestamp": '{"T": {"0": -1}}'}, "expected milliseconds since 1970, not -1"),
        ({**GIVEN, "minPartitions": "0"}, "option minPartitions of rmq cannot be '0'"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(options)
    assert told in str(raised.value)


def test_batches_and_streams_refuse_what_is_the_other_s() -> None:
    with pytest.raises(OptionError, match="latest for a batch"):
        batch_only(read_options({**GIVEN, "startingOffsets": "latest"}))
    with pytest.raises(OptionError, match="is for streams"):
        batch_only(read_options({**GIVEN, "group": "g", "commitOffsetsToGroup": "true"}))
    with pytest.raises(OptionError, match="a stream has no end"):
        stream_only(read_options({**GIVEN, "endingTimestamp": "5"}))
    with pytest.raises(OptionError, match="batchBytes of rmq cannot be"):
        write_options({"namesrv": "h:1", "batchBytes": "5m"})


def test_a_stream_s_offset_is_a_start() -> None:
    offset = json.dumps({"T": {"a:0": 5, "b:0": EARLIEST}})
    starts = read_options({**GIVEN, "startingOffsets": offset}).starts
    assert starts == {ClusterQueueName("T", "a", 0): 5, ClusterQueueName("T", "b", 0): EARLIEST}


def test_a_name_server_that_says_nothing_is_told_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with ClusterConnection(address, None) as link, pytest.raises(ClusterError, match=f"{address}: no answer"):
            link.topics()


def test_arrow_s_functions_encode_what_the_client_encodes() -> None:
    maps = [
        {"a": "b", "UNIQ_KEY": "k1", "WAIT": "true"},
        {"UNIQ_KEY": "ü", "WAIT": "true"},
        {"CLUSTER": "x", "UNIQ_KEY": "3", "WAIT": "true"},
    ]
    bodies = [b"one", b"\x00" * 99, b"three"]
    column = pa.array([list(one.items()) for one in [{}, *maps, {}]], pa.map_(pa.string(), pa.string()))
    encoded = encode_messages(
        pa.array(bodies, pa.binary()), encode_property_maps(column.slice(1, 3)), np.array([0, 7, -1], dtype=np.int32)
    )
    for message, body, flag, properties in zip(encoded.to_pylist(), bodies, (0, 7, -1), maps, strict=True):
        sent = {name: value for name, value in properties.items() if name not in ("CLUSTER", "WAIT")}
        assert message == Packer("g", ProducerOptions()).batch([Message("T", body, properties=sent, flag=flag)]).body
