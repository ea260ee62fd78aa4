"""Acknowledgements that come before their check point are kept, and bounded."""

from rmq_core.broker.pop.journal import MAX_KEYS, MAX_OFFSETS, EarlyAcks
from rmq_core.broker.pop.records import Acknowledgement


def test_what_is_said_again_and_again_is_kept_once() -> None:
    early = EarlyAcks()
    for _ in range(1000):
        early.put(Acknowledgement(ao=7, t="T"))
    early.put(Acknowledgement(aol=[8, 9], t="T"))
    for offset in range(1000):
        early.put(Acknowledgement(ao=offset, t="U"))
    assert early.drain(Acknowledgement(t="T").key) == {7, 8, 9}
    assert len(early.drain(Acknowledgement(t="U").key)) == MAX_OFFSETS
    assert early.drain(Acknowledgement(t="T").key) == set()


def test_the_oldest_leave_where_there_are_too_many() -> None:
    early = EarlyAcks()
    for number in range(MAX_KEYS + 2):
        early.put(Acknowledgement(ao=1, so=number))
    early.put(Acknowledgement(ao=2, so=MAX_KEYS))  # known already: nobody has to leave
    assert [early.drain(Acknowledgement(so=number).key) for number in (0, 1, 2)] == [set(), set(), {1}]
    assert early.drain(Acknowledgement(so=MAX_KEYS).key) == {1, 2}
