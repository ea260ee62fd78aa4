"""Open files that are bytes, for what reads ranges of a file."""


class InMemory:
    """A file in memory; see ``rmq_formats.storage.segments.OpenRange``."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.size_bytes = len(data)

    def read_into(self, offset: int, target: memoryview) -> int:
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def data_end(self) -> int:
        return len(bytes(self.data).rstrip(b"\0"))

    def close(self) -> None:
        pass
