"""Messages as lines of JSON."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_cli import produce
from rmq_core.client import Message, MessageError, MessageQueue, SendResult, SendStatus
from rmq_core.client.json_lines import line_of_message, message_of_line
from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import FLAG_COMPRESSED
from rmq_formats.errors import StoreError
from tests.client.conftest import received


def test_a_line_has_all_that_a_message_can_have() -> None:
    line = b'{"topic":"T","body":"b\\u00fc","tags":"A","keys":"k l","properties":{"x":"y"},"flag":3,"delay_level":2}'
    assert message_of_line(line, None) == Message(
        "T", "bü".encode(), tags="A", keys="k l", properties={"x": "y"}, flag=3, delay_level=2
    )


def test_the_topic_that_is_given_goes_before_that_of_the_line() -> None:
    assert message_of_line(b'{"topic":"T","body":"b"}', "U").topic == "U"


def test_what_is_printed_can_be_sent_again() -> None:
    for body in (b"text", b"\xff\x00"):
        line = line_of_message(received(7, body))
        assert line.endswith(b"\n")
        assert json.loads(line)["queue_offset"] == 7
        again = message_of_line(line, None)
        assert (again.topic, again.body) == ("T", body)
        assert again.properties == {}  # it gets a unique key of its own


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not a message"),
        (b"[]", "not a message"),
        (b"\xff", "not a message"),
        (b"[" * 100_000, "not a message"),
        (b'{"bdy":"x"}', "unknown field `bdy`"),
        (b'{"topic":"T"}', "neither body"),
        (b'{"topic":"T","body_base64":"!"}', "body_base64"),
        (b'{"topic":"T","body":1}', "not a message"),
        (b'{"body":"x"}', "no topic"),
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        message_of_line(line, None)


def test_lines_of_a_store_s_records_can_be_sent(golden: Callable[[str], Path]) -> None:
    lines = (golden("mixed") / "expected" / "messages.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    for record, line in zip(records, lines, strict=True):
        message = message_of_line(line, None)
        assert message.topic == record["topic"]
        assert message.tags == record["properties"].get("TAGS")
        assert message.keys == record["properties"].get("KEYS", "")
        is_compressed = record["sys_flag"] & FLAG_COMPRESSED
        assert is_compressed or message.body == b64decode(record["body_base64"])
    packed = next(record for record in records if record["sys_flag"] & FLAG_COMPRESSED)
    message = message_of_line(json.dumps(packed).encode(), None)
    assert message.body == decompress(b64decode(packed["body_base64"]), packed["sys_flag"])


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), StoreError("stdout: No space left on device")])
async def test_results_that_cannot_be_written_end_the_sends(tmp_path: Path, error: Exception) -> None:
    class Sending:
        async def send(self, _: Message) -> SendResult:
            await asyncio.sleep(0)
            queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
            return SendResult(SendStatus.SEND_OK, "id", "oid", queue, 0, None, None)

    class Full:
        def write(self, _: bytes) -> None:
            raise error

    (tmp_path / "lines").write_text("x\n" * 5000)
    sending: Any = Sending()
    results: Any = Full()
    work = produce._Sending(sending, lambda line: Message("T", line), results)
    async with asyncio.timeout(60):
        with pytest.raises(type(error)):
            await work.run(tmp_path / "lines", 4)
