"""What a message that waits costs a broker in memory: next to nothing."""

import gc
import tracemalloc
from collections.abc import Iterator

import psutil
import pytest

from rmq_core.store.timer.wheel import TimerWheel
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.timer import TIMER_UNIT_BYTES, WHEEL_FILE_BYTES
from rmq_formats.codecs.topics import TIMER_TOPIC
from tests.broker.conftest import Asker, Clock, eventually
from tests.broker.timer.test_delivery import SECOND_MS
from tests.broker.timer.test_slices import timers_of

COUNT = 12_000  # some 100 KB of the process have nothing to do with them
WARM = 1000
SLOTS = 2000  # seconds in which they are due
BYTES_EACH = 16  # what may remain of each: an object would have more, and so would a place in a list


def wait_for(asker: Asker, clock: Clock, begin: int, end: int) -> None:
    """Put messages into the timer topic, as sends would, and have them taken in."""
    store, now_ms = asker.broker.store, clock()
    for number in range(begin, end):
        due_ms = (now_ms // SECOND_MS + 600 + number % SLOTS) * SECOND_MS
        properties = {
            "UNIQ_KEY": f"U{number}", "REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(due_ms),
        }  # fmt: skip
        store.appender.put(TIMER_TOPIC, 0, b"%d" % number, encode_properties(properties), now_ms, bytes(8), now_ms)
    store.dispatch()


async def taken_in(asker: Asker, count: int) -> None:
    """Wait until so many are taken in, and that is on the disk."""
    work = timers_of(asker)

    async def are() -> bool:
        asker.broker.store.flush()
        return work.files.queue_offset == count and work.files.done.queue_offset == count

    await eventually(are, 120)


def of_timers() -> int:
    """Bytes that the modules of timer messages have allocated."""
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern="*/timer*")])
    return sum(trace.size for trace in own.traces)


@pytest.fixture
def untraced() -> Iterator[None]:
    """No allocations are traced afterwards."""
    yield
    tracemalloc.stop()


@pytest.mark.long
@pytest.mark.usefixtures("untraced")
async def test_messages_that_wait_are_not_in_memory(asker: Asker, clock: Clock) -> None:
    wait_for(asker, clock, 0, WARM)
    await taken_in(asker, WARM)
    tracemalloc.start()
    wait_for(asker, clock, WARM, COUNT)
    await taken_in(asker, COUNT)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] < BYTES_EACH * (COUNT - WARM)
    assert timers_of(asker).files.log.end >= COUNT * TIMER_UNIT_BYTES

    await asker.broker.close()
    await asker.broker.start()  # which links nothing and reads no message
    await taken_in(asker, COUNT)
    assert of_timers() < BYTES_EACH * COUNT
    assert timers_of(asker).files.wheel.count_from(clock()) == COUNT
    clock.ahead_ms += 601 * SECOND_MS + SECOND_MS

    async def came() -> bool:
        return asker.broker.store.max_offset("T", 0) >= 2

    await eventually(came, 60)


def test_a_wheel_that_is_only_looked_at_takes_no_memory() -> None:
    process = psutil.Process()
    kept, taken = [], []
    for _ in range(2):  # the first one brings what all share
        before = process.memory_full_info().uss
        wheel = TimerWheel(SECOND_MS)
        kept.append(wheel)
        assert wheel.count_from(0) == 0
        wheel.clear_before(1 << 40)
        taken.append(process.memory_full_info().uss - before)
    assert taken[1] < WHEEL_FILE_BYTES // 8
