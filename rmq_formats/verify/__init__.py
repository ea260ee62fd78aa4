"""What a store's files should say, against what they say: pure comparisons, findings out.

``log`` looks at records, ``queue`` and ``ext`` at ConsumeQueue files, ``index`` at IndexFiles, ``small`` at
the checkpoint and the config. ``rmq_formats.offline.verify`` brings them their bytes.
"""
