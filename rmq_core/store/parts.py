"""Parts of an open store."""

from dataclasses import dataclass

from rmq_core.store.commitlog.append import Refusals
from rmq_core.store.commitlog.flush import LogFlusher
from rmq_core.store.commitlog.log import CommitLog
from rmq_core.store.commitlog.quarantine import Quarantine
from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_core.store.dispatch.dispatch import Dispatch
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_core.store.files.watermark import CheckpointFiles
from rmq_core.store.index.index import Index


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store; recovery, dispatch, cleaning and the background thread work on them."""

    config: StoreConfig
    disk: Disk
    threads: Threads
    log: CommitLog
    quarantine: Quarantine
    queues: ConsumeQueueTable
    index: Index | None
    dispatch: Dispatch
    flusher: LogFlusher
    checkpoint_files: CheckpointFiles
    refusals: Refusals
