"""The sizes that the original's design names are those of a store without settings."""

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT_BYTES


def test_files_have_the_sizes_of_the_design() -> None:
    config = StoreConfig(root="store")
    assert config.commitlog_file_bytes == 1 << 30
    assert (UNIT_BYTES, config.consumequeue_file_bytes) == (20, 300_000 * 20)
    index_bytes = INDEX_HEADER_BYTES + config.index_slots * INDEX_SLOT_BYTES + config.index_entries * INDEX_ENTRY_BYTES
    assert index_bytes == 420_000_040
