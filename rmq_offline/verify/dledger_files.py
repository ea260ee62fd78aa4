"""Compares DLedger's small files and the end of its index with the log: committed entries, and the term."""

from collections.abc import Iterator, Sequence
from typing import Final

from rmq_formats.codecs import dledger
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.errors import DecodeError, StoreError
from rmq_formats.storage.segments import Storage, list_segments, opened
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.dledger_entries import EntrySpan
from rmq_offline.verify.findings import Finding, Kind

_MAX_TEXT_BYTES: Final = 4096  # each of the files has two short lines


def check_dledger_files(storage: Storage, data_directory: str, spans: Sequence[EntrySpan]) -> Iterator[Finding]:
    """Compare ``checkpoint``, ``currterm`` and the index's end with the log's last entry.

    Args:
        data_directory: ``dledger-<selfId>/data``.
        spans: entries of the log's splits.
    """
    last = max((span.last_index for span in spans), default=-1)
    term = max((span.last_term for span in spans), default=-1)
    directory = data_directory.rsplit("/", 1)[0]
    for name, kind, keys, least, most in (
        ("checkpoint", layout_finding_kinds.DLEDGER_CHECKPOINT, ("committedIndex", "endIndex"), -1, last),
        ("currterm", layout_finding_kinds.DLEDGER_TERM, ("currTerm",), term, MAX_LONG),
    ):
        path = f"{directory}/{name}"
        try:
            numbers = _numbers(storage, path, keys)
        except (DecodeError, StoreError) as error:
            yield Finding(kind, str(error), path)
            continue
        for key, value in numbers.items():
            if not least <= value <= most:
                yield Finding(kind, key, path, expected=f"last entry {last}, term {term}", actual=str(value))
    yield from _surplus_findings(storage, f"{directory}/index", last)


def _numbers(storage: Storage, path: str, keys: Sequence[str]) -> dict[str, int]:
    """Return the numbers of a properties file that is there. Raises DecodeError, StoreError."""
    if not storage.exists(path):
        return {}
    text = storage.read_bytes(path)[:_MAX_TEXT_BYTES].decode("utf-8", "replace")
    values = dledger.properties(text)
    try:
        return {key: int(values[key]) for key in keys if key in values}
    except ValueError as error:
        raise DecodeError(f"no number: {error}") from error


def _surplus_findings(storage: Storage, directory: str, last_index: int) -> Iterator[Finding]:
    kind: Kind = layout_finding_kinds.ENTRY_UNIT_SURPLUS
    end = (last_index + 1) * dledger.INDEX_UNIT_BYTES
    try:
        for segment in list_segments(storage, directory)[-1:]:
            with opened(storage, segment.path) as file:
                used = segment.start_offset + file.data_end()
            if used > end:
                count = -(-(used - end) // dledger.INDEX_UNIT_BYTES)
                detail = f"{count} units behind that of the last entry, {last_index}"
                yield Finding(kind, detail, segment.path, count=count)
    except StoreError as error:
        yield Finding(layout_finding_kinds.ENTRY_UNIT, str(error), directory)
