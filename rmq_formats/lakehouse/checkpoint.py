"""The directory of a stream's checkpoint: whose it is, and where its batches end."""

import json
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError

_MARKER: Final = "rmq-export.json"
_OFFSETS: Final = "offsets"


class Checkpoint:
    """A checkpoint's directory, by Hadoop's file systems, as Spark itself opens it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self.path = path
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def claim(self, store_id: str, app_ids: Sequence[str]) -> None:
        """Mark the directory as this export's.

        Raises:
            StoreError: it is another's, or no export's.
        """
        mine = {"store": store_id, "exports": sorted(app_ids)}
        marker = self._path(_MARKER)
        if not self._files.exists(marker):
            if self._files.exists(self._path(_OFFSETS)):
                raise StoreError(f"{self.path}: a checkpoint that no export wrote; give another --checkpoint")
            stream = self._files.create(marker, True)
            stream.write(bytearray(json.dumps(mine).encode()))
            stream.close()
            return
        try:
            found = json.loads(self._read(marker))
        except ValueError:
            raise StoreError(f"{self.path}/{_MARKER}: is not what an export wrote; give another --checkpoint") from None
        if found.get("store") != store_id:
            raise StoreError(f"{self.path}: a checkpoint of {found.get('store')}, not of {store_id}")
        if found != mine:
            raise StoreError(f"{self.path}: a checkpoint of an export of other messages; give another --checkpoint")

    def check(self, store_id: str, app_ids: Sequence[str]) -> None:
        """As ``claim``, where there is a directory; writes nothing. Raises StoreError."""
        if self._files.exists(self._path(_MARKER)) or self._files.exists(self._path(_OFFSETS)):
            self.claim(store_id, app_ids)

    def batch_end(self, batch_id: int) -> int:
        """Physical offset where a micro batch ends, which Spark writes down before it begins."""
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
