"""Messages of the gRPC service. They are made when they are loaded: type checkers see none of their members."""

from typing import Any

from rmq_core.proxy.protos import definition_pb2, service_pb2

v2: Any = definition_pb2
rpc: Any = service_pb2


def ms_of(told: Any) -> int:
    """A timestamp or a duration, in ms: protobuf's own way raises ValueError of those that cannot be."""
    return int(told.seconds * 1000 + told.nanos // 1_000_000)
