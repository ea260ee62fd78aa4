"""Log of a store's recovery."""

from rmq_core.broker.tables.table_file import log
from rmq_core.store.store import MessageStore


def log_recovery(store: MessageStore) -> None:
    """Log the result of the recovery, unless the shutdown was clean."""
    recovery = store.recovery
    if recovery.is_new or (recovery.is_clean and not recovery.damages):
        return
    log.info(
        "the store was not shut down in order: read %(records)d records from %(begin)d to %(end)d in %(seconds).2f s",
        {
            "records": recovery.record_count,
            "begin": recovery.begin_offset,
            "end": recovery.end_offset,
            "seconds": recovery.seconds,
        },
    )
    for damage in recovery.tail:
        log.info("a torn end of the log was cut off: %(damage)s", {"damage": damage})
    for path in recovery.quarantined:
        log.warning("damaged bytes are kept in %(path)s", {"path": path})
