"""A store's messages in Delta tables, each once: raw tables, typed tables, dead letters.

``jobs/export_delta.py`` is the shell around it; ``docs/lakehouse.md`` says how it holds.
"""
