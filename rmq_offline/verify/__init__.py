"""Verifies a store: compares CommitLog, ConsumeQueue, Index, checkpoint and config; differences are findings.

The modules are named after the files that they check: ``commitlog``, ``consumequeue`` (``units`` classifies each
unit), ``consumequeue_ext``, ``index_file``, ``checkpoint``, ``config_files``. ``job`` runs the ``phases``, which read
the bytes.
"""
