"""Checkpoint directory of an export's streaming query: its owner, and where its micro batches end."""

import json
import uuid
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError

_MARKER: Final = "rmq-export.json"
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"


class ExportCheckpoint:
    """Checkpoint directory, read by Hadoop's file systems, as Spark itself opens it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self.path = path
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def check(self, store_id: str) -> None:
        """Refuse a directory that is no checkpoint of the store's exports; writes nothing. Raises StoreError."""
        marker = self._path(_MARKER)
        if not self._files.exists(marker):
            if self._files.exists(self._path(_OFFSETS)):
                raise StoreError(f"{self.path}: a checkpoint that no export wrote; give another --checkpoint")
            return
        try:
            owner = json.loads(self._read(marker))["store"]
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{self.path}/{_MARKER}: not written by an export; give another --checkpoint") from None
        if owner != store_id:
            raise StoreError(f"{self.path}: a checkpoint of {owner}, not of {store_id}; give another --checkpoint")

    def claim(self, store_id: str) -> None:
        """Mark a checked directory as the store's, once; the mark is written atomically. Raises StoreError."""
        marker = self._path(_MARKER)
        if self._files.exists(marker):
            return
        temporary = self._path(f"{_MARKER}.{uuid.uuid4().hex}")
        stream = self._files.create(temporary, True)
        stream.write(bytearray(json.dumps({"store": store_id}).encode()))
        stream.close()
        if not self._files.rename(temporary, marker):
            self._files.delete(temporary, False)
            if not self._files.exists(marker):  # not because another export was faster
                raise StoreError(f"{self.path}/{_MARKER}: cannot be written")

    def committed_end(self) -> int:
        """Return the physical offset up to which the query has committed; 0 where there was none."""
        commits = self._path(_COMMITS)
        if not self._files.exists(commits):
            return 0
        names = [status.getPath().getName() for status in self._files.listStatus(commits)]
        batches = [int(name) for name in names if name.isdigit()]
        return self.batch_end(max(batches)) if batches else 0

    def batch_end(self, batch_id: int) -> int:
        """Return the physical offset where a micro batch ends, which Spark writes down before it begins."""
        *_, line = self._read(self._path(f"{_OFFSETS}/{batch_id}")).splitlines()
        return int(json.loads(line)["physicalOffset"])

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def _read(self, path: Any) -> str:
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
