"""The files of ``config/`` that have committed offsets: read as a broker does, and written with other offsets."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.config_json import check_consumer_offsets, check_delay_offsets, offsets_document
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.read.broker_config import offsets_file, read_config, stored_offsets
from rmq_formats.read.config_documents import LIGHT_TABLE, OFFSETS
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_variants import Variant
from rmq_offline.verify.checkpoint_and_config import Claim, parse_consumer_claims, parse_delay_claims

DELAY_OFFSETS: Final = "delayOffset.json"


@dataclass(frozen=True, slots=True)
class OffsetsDocument:
    """A table of committed offsets.

    Attributes:
        name: of its file in ``config/``; None of a table in RocksDB, which is not written.
    """

    name: str | None
    content: dict[str, Any]
    claims: tuple[Claim, ...]

    def with_offsets(self, claims: Iterable[Claim]) -> bytes:
        """Encode the file with other offsets; what else is in it stays."""
        content: dict[str, Any] = json.loads(json.dumps(self.content))
        for claim in claims:
            if claim.group is None:
                content.setdefault(OFFSETS.table, {})[str(claim.queue_id + 1)] = claim.queue_offset
                continue
            key = f"{claim.topic}@{claim.group}"
            light = content.get(LIGHT_TABLE)
            if isinstance(light, dict) and (key in light or claim.group.startswith(LIGHT_QUEUE_PREFIX)):
                light[key] = claim.queue_offset
            else:
                content.setdefault(OFFSETS.table, {}).setdefault(key, {})[str(claim.queue_id)] = claim.queue_offset
        return json.dumps(content, indent=1).encode()


def read_documents(store: StoreFiles) -> list[OffsetsDocument]:
    """Read the offsets of consumer groups and of delay levels.

    Raises:
        StoreLayoutError: there are the files of a broker with light queues (LMQ) and of one without.
        StoreError: neither a file nor its ``.bak`` can be read, or not the RocksDB.
        FormatError: the offsets are in a RocksDB that is damaged.
    """
    documents = []
    if Variant.ROCKSDB_CONFIG in store.layouts:
        claims = [
            Claim(topic, queue_id, offset, group)
            for (topic, group), queues in stored_offsets(store).items()
            for queue_id, offset in queues.items()
        ]
        documents.append(OffsetsDocument(None, {}, tuple(claims)))
    else:
        name = offsets_file(store)
        content, text = read_config(store, name, _parse_consumer_offsets) or ({}, "{}")
        documents.append(OffsetsDocument(name, content, tuple(parse_consumer_claims(text))))
    content, text = read_config(store, DELAY_OFFSETS, _parse_delay_offsets) or ({}, "{}")
    documents.append(OffsetsDocument(DELAY_OFFSETS, content, tuple(parse_delay_claims(text))))
    return documents


def _parse_consumer_offsets(text: str) -> tuple[dict[str, Any], str]:
    content = offsets_document(text)
    check_consumer_offsets(content)
    return content, text


def _parse_delay_offsets(text: str) -> tuple[dict[str, Any], str]:
    content = offsets_document(text)
    check_delay_offsets(content)
    return content, text


def config_path(root: str, document: OffsetsDocument) -> str:
    """Return the path of a table of offsets, for people."""
    directory = paths.config_dir(root)
    return directory if document.name is None else f"{directory}/{document.name}"
