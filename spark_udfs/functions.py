"""Arrow UDFs of the column functions.

The kernels are imported when a function runs: the driver only needs its name and type. Types are objects, not
texts, which could only be parsed with a running session.
"""

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType

from spark_udfs.arrow import arrow_function


@arrow_function(MapType(StringType(), StringType()))
def rmq_properties(block: pa.Array) -> pa.Array:
    """Decode properties from their bytes in a record, ``name 0x01 value 0x02`` repeated; null for null."""
    from rmq_formats.arrow.functions import properties  # noqa: PLC0415

    return properties(block)


@arrow_function(LongType())
def rmq_tags_code(tags: pa.Array) -> pa.Array:
    """Compute the tags code of a ConsumeQueue unit: Java's ``String.hashCode`` with its sign; 0 without tags."""
    from rmq_formats.arrow.functions import tags_codes  # noqa: PLC0415

    return tags_codes(tags)


@arrow_function(IntegerType())
def rmq_key_hash(topic: pa.Array, key: pa.Array) -> pa.Array:
    """Compute the hash under which an IndexFile keeps a key of a topic; null if either is."""
    from rmq_formats.arrow.functions import key_hashes  # noqa: PLC0415

    return key_hashes(topic, key)


@arrow_function(IntegerType())
def rmq_crc32(body: pa.Array) -> pa.Array:
    """Compute CRC-32 without its highest bit, as RocketMQ keeps it in ``body_crc``; null for null."""
    from rmq_formats.arrow.functions import body_crcs  # noqa: PLC0415

    return body_crcs(body)


@arrow_function(BinaryType())
def rmq_body(body: pa.Array, sys_flag: pa.Array) -> pa.Array:
    """Decompress a body as its ``sys_flag`` says; unchanged if that says plain, null for null and for damage."""
    from rmq_formats.arrow.functions import plain_bodies  # noqa: PLC0415

    return plain_bodies(body, sys_flag)
