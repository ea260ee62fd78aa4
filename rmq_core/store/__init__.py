"""The store engine: one broker's CommitLog, ConsumeQueues and Index, written and served as the original does.

Plain calls, no event loop: the broker's one loop calls ``MessageStore`` and never waits for the disk but
where it says so; threads of the store force data to the disk. ``docs/store-engine.md`` tells how it works.
"""
