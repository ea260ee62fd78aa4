"""The lab: seeded rounds that break things, and what must hold all the same; ``python -m tests.lab --help``.

A *part* is one way to break things, and a *round* of it is told by its seed alone: no clock, no thread and no order of
a hash has a say in what it does. Only where a broker runs with its threads (``brokers``, ``frames``, ``kills``) what is
sent and by what chances is repeated, and not the instant.
"""
