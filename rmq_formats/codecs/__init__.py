"""Codecs of a RocketMQ store's file types: bytes decoded to values, and values encoded."""
