"""Says what the recovery of a store has found."""

from rmq_core.broker.tables.table_file import log
from rmq_core.store.store import MessageStore


def tell_recovery(store: MessageStore) -> None:
    """Log what recovery has found, unless the store was shut down in order."""
    found = store.recovery
    if found.is_new or (found.is_clean and not found.damages):
        return
    log.info(
        "the store was not shut down in order: read %(records)d records from %(begin)d to %(end)d in %(seconds).2f s",
        {"records": found.record_count, "begin": found.begin_offset, "end": found.end_offset, "seconds": found.seconds},
    )
    for damage in found.tail:
        log.info("a torn end of the log was cut off: %(damage)s", {"damage": damage})
    for path in found.quarantined:
        log.warning("damaged bytes are kept in %(path)s", {"path": path})
