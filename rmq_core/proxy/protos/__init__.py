"""Protocol of the gRPC service, ``apache.rocketmq.v2`` of apache/rocketmq-apis v2.1.2 (Apache License 2.0).

The modules are made of the ``.proto`` files beside them, which are unchanged: ``python -m grpc_tools.protoc -I .
--python_out=. apache/rocketmq/v2/*.proto`` of grpcio-tools 1.76; their import of each other is this package.
"""
