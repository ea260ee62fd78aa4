"""Messages of the gRPC service, generated at import: type checkers see none of their members."""

from typing import Any

from rmq_core.proxy.protos import definition_pb2, service_pb2

v2: Any = definition_pb2
rpc: Any = service_pb2


def ms_of(time: Any) -> int:
    """Return a timestamp or a duration in ms: protobuf's own conversion raises ValueError for impossible values."""
    return int(time.seconds * 1000 + time.nanos // 1_000_000)
