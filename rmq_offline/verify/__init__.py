"""Verifies a store: compares CommitLog, ConsumeQueue, Index, checkpoint and config; differences are findings.

``log`` looks at records, ``queue`` and ``ext`` at ConsumeQueue files, ``index`` at IndexFiles,
``checkpoint_and_config`` at the checkpoint and the config. ``job`` brings them their bytes.
"""
