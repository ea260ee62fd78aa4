"""Messages as tables: exactly-once export to Delta and Iceberg, and Spark's sources over a running cluster.

``jobs/export_delta.py`` is the shell around it; ``docs/lakehouse.md`` explains its guarantees.
"""
