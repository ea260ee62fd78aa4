"""Exactly-once export of a store's messages to Delta and Iceberg tables: raw tables, typed tables, dead letters.

``jobs/export_delta.py`` is the shell around it; ``docs/lakehouse.md`` explains its guarantees.
"""
