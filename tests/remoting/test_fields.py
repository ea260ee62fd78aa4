import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting import namesrv_requests, requests
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields, write_fields
from rmq_core.remoting.header import decode_json_header, encode_json_header, request
from tests.remoting.command_strategies import TEXTS

SEND_V2 = {
    "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1795228809535", "h": "0",
    "i": "KEYS\x01k\x02", "j": "0", "k": "false", "m": "TRUE", "n": "broker-a",
}  # fmt: skip


def test_letters_of_a_send_are_its_names() -> None:
    message = read_fields(request(310, SEND_V2), requests.SendMessageV2)
    assert (message.producer_group, message.topic, message.default_topic) == ("pg", "T", "TBW102")
    assert (message.queue_id, message.born_timestamp, message.properties) == (-1, 1795228809535, "KEYS\x01k\x02")
    assert (message.unit_mode, message.batch, message.max_reconsume_times) == (False, True, None)


def test_fields_are_the_same_from_json_bytes_and_from_a_dictionary() -> None:
    received = decode_json_header(encode_json_header(request(310, SEND_V2)))
    assert read_fields(received, requests.SendMessageV2) == read_fields(request(310, SEND_V2), requests.SendMessageV2)


def test_json_numbers_do_as_well_as_texts() -> None:
    received = decode_json_header(b'{"extFields":{"consumerGroup":7,"topic":"T","queueId":3,"commitOffset":"9"}}')
    offset = read_fields(received, requests.UpdateConsumerOffset)
    assert offset == requests.UpdateConsumerOffset(consumer_group="7", topic="T", queue_id=3, commit_offset=9)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"topic": "T"}, "the custom field <queueId> is null"),
        ({"queueId": "1"}, "the custom field <topic> is null"),
        ({"topic": "T", "queueId": "one"}, "bad custom field"),
        ({"topic": "T", "queueId": "2147483648"}, "bad custom field"),
        ({"topic": "T", "queueId": "1", "committed": "maybe"}, "bad custom field"),
    ],
)
def test_a_missing_or_bad_field_is_an_answer_with_code_1(as_json: bool, fields: dict[str, str], remark: str) -> None:
    command = request(30, fields)
    if as_json:
        command = decode_json_header(encode_json_header(command))
    with pytest.raises(ResponseError, match=remark) as raised:
        read_fields(command, requests.Queue)
    assert raised.value.code == 1


@given(TEXTS, TEXTS, st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.booleans(), st.booleans())
def test_fields_survive_being_written(name: str, address: str, number: int, acting: bool | None, packed: bool) -> None:
    fields = namesrv_requests.RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name="c",
        broker_id=number,
        ha_server_addr="",
        enable_acting_master=acting,
        compressed=packed,
    )
    written = write_fields(fields)
    assert all(type(value) is str for value in written.values())
    assert ("enableActingMaster" in written) == (acting is not None)
    assert read_fields(request(103, written), namesrv_requests.RegisterBroker) == fields


def test_the_client_id_has_its_own_spelling() -> None:
    assert write_fields(requests.UnregisterClient(client_id="i@1", consumer_group="g")) == {
        "clientID": "i@1",
        "consumerGroup": "g",
    }
