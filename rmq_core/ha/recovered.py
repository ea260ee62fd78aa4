"""The file ``config/recoveredFrom.json``: from where on a recovery may have changed a master's log.

What was not forced at a loss of power may be lost in the middle and be there behind that: a slave then has other bytes
far before its end. So it compares from there. The file is ours; the original passes over it.
"""

import logging
from typing import Final

from rmq_core.store.files import config_files
from rmq_core.store.store import MessageStore
from rmq_formats.codecs import paths

log = logging.getLogger("rmq.broker.replication")
_FILE: Final = "recoveredFrom.json"
_KEY: Final = "physicalOffset"
_MOST_BYTES: Final = 1 << 30  # of log behind that, which each slave would compare: a matter of seconds


def sound_until(store: MessageStore) -> int:
    """Return the offset below which no recovery has changed a store's log; the log's end if none has."""
    path = f"{paths.config_dir(store.config.root)}/{_FILE}"
    end, recovery = store.max_physical_offset, store.recovery
    begin = config_files.load_numbers(path, store.disk).get(_KEY, end)
    if begin > end or end - begin > _MOST_BYTES:
        begin = end
    if not recovery.is_new and (not recovery.is_clean or recovery.damages):
        begin = min(begin, recovery.begin_offset)
        try:
            config_files.save(path, config_files.dump_numbers({_KEY: begin}), store.disk)
        except OSError as error:  # it counts until the next start
            log.warning("%(path)s cannot be written: %(error)s", {"path": path, "error": error})
    return begin
