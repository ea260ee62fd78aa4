"""Writes stores as the sink does, without Spark: begin, one task for each list of batches, commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_cli.dump.json_lines import message_line
from rmq_formats import Store
from rmq_formats.arrow.schema import COMMITLOG
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.kernels.encode.rows import CRC_AS_GIVEN
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.write.commitlog import WriteOptions, begin_write, commit_write
from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import golden_options, stored_messages

SMALL_DISPATCH = RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 20, delay_levels_ms("1s 5s")))
FILE_BYTES = 16384


def write(
    root: Path | str,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    *,
    overwrite: bool = False,
    file_bytes: int | None = FILE_BYTES,
    crc_way: int = CRC_AS_GIVEN,
    keep_offsets: bool = False,
    dispatch: RebuildOptions | None = None,
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
) -> int:
    """Write batches, a task for each list of them; how many records they are."""
    options = WriteOptions(str(root), overwrite, file_bytes, crc_way, keep_offsets, dispatch, leftover)
    begun = begin_write(options)
    written = [begun.job.write_task(batches, begun.encoding) for batches in tasks]
    return commit_write(begun, written, ProcessRunner(1))


def rows(**columns: Sequence[Any]) -> pa.RecordBatch:
    """A batch of some of ``rmq_commitlog``'s columns."""
    schema = pa.schema([COMMITLOG.field(name) for name in columns])
    return pa.record_batch([pa.array(columns[name], schema.field(name).type) for name in columns], schema=schema)


def batches_of(store: Path, *without: str) -> list[pa.RecordBatch]:
    """A store's records as the source gives them, without some columns."""
    return list(Store(str(store)).arrow([name for name in COMMITLOG.names if name not in without]))


def lines(store: Path) -> list[bytes]:
    """Each record in the form of ``messages.jsonl``, in the order of the log."""
    return [message_line(message) for message in stored_messages(store)]


def dispatch_of(settings: GoldenSettings) -> RebuildOptions:
    """How a golden store's queues and Index are made."""
    return golden_options(settings)
