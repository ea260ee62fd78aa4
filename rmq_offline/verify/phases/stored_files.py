"""Lists and reads the files of a store's queues."""

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.consumequeue import QueueFile, QueueName
from rmq_offline.verify.consumequeue_ext import ExtTable
from rmq_offline.verify.findings import FindingList, Kind

_NO_BYTES: Final = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Reader of the files of queues; unreadable and foreign files become findings."""

    store: StoreFiles
    sizes: StoreSizes
    findings: FindingList

    def files(
        self, name: QueueName, directory: str, unreadable: Kind, foreign: Kind, file_bytes: int
    ) -> list[QueueFile] | None:
        """List the files of a queue; None where the directory cannot be read."""
        try:
            entries = self.store.storage.entries(directory)
        except StoreError as error:
            name.report(self.findings, unreadable, str(error), path=directory)
            return None
        files = []
        for entry in entries:
            path = f"{directory}/{entry.name}"
            start_offset = paths.parse_segment_name(entry.name, entry.size_bytes)
            if entry.is_directory:
                name.report(self.findings, finding_kinds.STRAY, "a directory among a queue's files", path=path)
            elif start_offset is None:
                name.report(self.findings, foreign, "no name of a queue's file", path=path, size=entry.size_bytes)
            else:
                read = functools.partial(_read_used_bytes, self.store.storage, path, file_bytes)
                files.append(QueueFile(path, start_offset, entry.size_bytes, read))
        return files

    def ext(self, name: QueueName) -> ExtTable | None:
        """Read the queue's ConsumeQueueExt units; None if no queue of the store has any."""
        file_bytes = self.sizes.consumequeue_ext_file_bytes
        if not file_bytes:
            return None
        directory = paths.queue_dir(paths.consumequeue_ext_dir(self.store.root), name.topic, name.queue_id)
        table = ExtTable(name.topic, name.queue_id, self.findings)
        files = self.files(name, directory, finding_kinds.EXT_UNREADABLE, finding_kinds.EXT_FOREIGN, file_bytes) or []
        for file in files:
            if file.size_bytes != file_bytes:
                kind, detail = finding_kinds.EXT_FILE_SIZE, "file of another size than the others"
                expected, actual = str(file_bytes), str(file.size_bytes)
                name.report(self.findings, kind, detail, path=file.path, expected=expected, actual=actual)
            try:
                data = np.zeros(file_bytes, dtype=np.uint8)
                used = file.read()[:file_bytes]
                data[: len(used)] = used
                table.add_file(file.path, file.start_offset, data, is_last=file is files[-1])
            except StoreError as error:
                name.report(self.findings, finding_kinds.EXT_UNREADABLE, str(error), path=file.path)
        table.freeze()
        return table


def _read_used_bytes(storage: Storage, path: str, file_bytes: int) -> NDArray[np.uint8]:
    """Read a file up to its last byte that is not zero. Raises StoreError."""
    try:
        with storage.open(path) as file:
            end = min(file.data_end(), file_bytes)
            if not end:
                return _NO_BYTES
            data = np.empty(-(-end // UNIT_BYTES) * UNIT_BYTES, dtype=np.uint8)
            got = file.read_into(0, data.data)
            data[got:] = 0
            return data
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error})") from error
