"""Pulls and sends of many messages at a time as arrays, for Spark sources and replays."""
