"""What a filter lets through, of records as of properties."""

from hypothesis import given
from hypothesis import strategies as st

from rmq_core.broker.tables.subscription_filter import sql_filter
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record import encode_record
from rmq_formats.sql92 import compile_expression
from tests.support.stores.record_strategies import hosts, plain_message, topics

EXPRESSION = "a = 'x' OR (b IS NOT NULL AND NOT b = 'ab') OR ab IN ('x', 'b')"
# Of the separators, too: names within others, names that come twice, and ones without a value.
blocks = st.lists(st.sampled_from([b"a", b"b", b"ab", b"x", b"\x01", b"\x02"]), max_size=30).map(b"".join)


@given(blocks, topics, st.binary(max_size=20), hosts)
def test_a_record_is_let_through_as_its_properties_are(block: bytes, topic: str, body: bytes, host: object) -> None:
    message = plain_message(topic, body, properties_bytes=block, born_host=host)
    record = memoryview(encode_record(message, queue_offset=0, physical_offset=0, store_timestamp_ms=1))
    matches = sql_filter(EXPRESSION, "SQL92").matches
    assert matches is not None
    assert matches(record) is compile_expression(EXPRESSION)(decode_properties(block))
