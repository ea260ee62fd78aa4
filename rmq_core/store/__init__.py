"""The store engine: one broker's CommitLog, ConsumeQueues and Index, written and served in RocketMQ's file formats.

Plain synchronous calls, no asyncio: the broker's event loop calls ``MessageStore``, which waits for the disk only
where its docstrings say so; threads of the store flush data to the disk. Whatever reads or writes files may raise an
OSError, of a full or a broken disk. ``docs/store-engine.md`` describes the design.
"""
