"""Reads a store's records by topic, time, key, tags or offset: query, access path, and the tasks that read bytes.

``query`` says what is wanted, ``plan`` chooses the access path and cuts the work into tasks, ``task``
runs one of them. Nothing here knows of Spark; its data sources, ``Store`` and the command line come through
here.
"""
