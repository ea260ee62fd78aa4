"""``--decompress``: raw tables with bodies as they were sent, and flags that say so."""

import pytest

from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.errors import OptionError
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import FILE_BYTES, HOST
from tests.lakehouse.test_iceberg import table_of
from tests.support.stores.store_files import write_commitlog


def write(exporter: Exporter) -> list[bytes]:
    sent = [bytes([65 + number]) * 300 for number in range(4)]
    codecs = [None, *Compression]
    messages = [
        MessageToStore(
            topic="T",
            queue_id=0,
            body=body if codec is None else compress(body, codec),
            sys_flag=0 if codec is None else codec.sys_flag,
            born_timestamp_ms=1,
            born_host=HOST,
            store_host=HOST,
        )
        for body, codec in zip(sent, codecs, strict=True)
    ]
    write_commitlog(exporter.store, messages, FILE_BYTES, 1_700_000_000_000)
    return sent


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_bodies_are_as_they_were_sent_and_flags_say_so(exporter: Exporter, table_format: str) -> None:
    sent = write(exporter)
    _, code = exporter.run("--format", table_format, "--decompress")
    assert code == 0
    if table_format == "delta":
        rows = [row.asDict() for row in exporter.rows()]
    else:
        rows = sorted(table_of(exporter, "table").scan().to_arrow().to_pylist(), key=lambda row: row["physical_offset"])
    assert [bytes(row["body"]) for row in rows] == sent
    assert {row["sys_flag"] for row in rows} == {0}


def test_typed_tables_need_no_option(exporter: Exporter) -> None:
    write(exporter)
    with pytest.raises(OptionError, match="--decompress needs --table"):
        exporter.run("--typed", "spec.toml", "--decompress", table=False)
