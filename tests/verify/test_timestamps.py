"""Store timestamps: a clock set back against a damaged header, however a log is cut."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Kind
from rmq_offline.verify.timestamps import TimeCheck, check_boundary


def findings(times: list[int], cuts: set[int], batches: set[int]) -> list[tuple[int | None, Kind]]:
    """What is told of records at offsets 0, 1, 2, …; splits end at ``cuts``, batches at both."""
    found: list[Finding] = []
    tail: list[tuple[int, int]] = []
    checks = [TimeCheck()]
    begin = 0
    for end in sorted({*cuts, *batches, len(times)} - {0}):
        part = np.array(times[begin:end], dtype=np.int64)
        falls = bool((np.diff(part) < 0).any())
        found += checks[-1].add(begin, np.arange(len(part)), part, max(part.tolist(), default=-1), falls=falls)
        begin = end
        if end in cuts:
            checks.append(TimeCheck())
    for check in checks:
        if check.head:
            found += check_boundary(tail, check.head)
            tail = check.tail
    found += check_boundary(tail, ())
    assert max((check.latest_ms for check in checks), default=-1) == max(times, default=-1)
    return sorted(((item.physical_offset, item.kind) for item in found), key=lambda told: (told[0], told[1].code))


RISING = st.lists(st.integers(0, 50), max_size=30).map(lambda steps: np.cumsum([1000, *steps]).tolist())
PLACES = st.sets(st.integers(1, 30), max_size=8)


@given(RISING, PLACES, PLACES)
def test_time_that_goes_on_is_no_finding(times: list[int], cuts: set[int], batches: set[int]) -> None:
    assert findings(times, {cut for cut in cuts if cut < len(times)}, {at for at in batches if at < len(times)}) == []


@given(st.integers(6, 30), st.data(), PLACES)
def test_one_record_out_of_line_is_told_as_itself(count: int, data: st.DataObject, batches: set[int]) -> None:
    times = [1000 + 10 * number for number in range(count)]
    number = data.draw(st.integers(1, count - 2))
    times[number] += data.draw(st.sampled_from([-5000, -25, 25, 5000, 1 << 50]))
    told = findings(times, set(), {at for at in batches if at < count})
    assert told == [(number, finding_kinds.LOG_TIME)]


@given(st.integers(12, 30), st.data(), PLACES)
def test_a_clock_set_back_is_told_where_it_was(count: int, data: st.DataObject, batches: set[int]) -> None:
    at = data.draw(st.integers(3, count - 3))
    back = data.draw(st.sampled_from([500, 5000]))
    times = [100_000 + 10 * number - (back if number >= at else 0) for number in range(count)]
    kind = finding_kinds.LOG_CLOCK if back >= 1000 else finding_kinds.LOG_CLOCK_STEP
    assert findings(times, set(), {place for place in batches if place < count}) == [(at, kind)]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), PLACES, PLACES)
def test_each_fall_is_told_once_wherever_a_log_is_cut(times: list[int], cuts: set[int], batches: set[int]) -> None:
    falls = sum(later < earlier for earlier, later in pairwise(times))
    told = findings(times, {cut for cut in cuts if cut < len(times)}, {at for at in batches if at < len(times)})
    assert len(told) == falls
