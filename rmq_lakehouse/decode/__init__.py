"""Bodies of messages as columns: JSON, Avro and Protobuf, with a reason where a body does not decode."""
