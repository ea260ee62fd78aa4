"""Many requests to a storage at once: all answers, in order, and no thread on a disk."""

import threading

from rmq_formats.storage.segments import REQUESTS_AT_ONCE, LocalStorage, request_all


class Far(LocalStorage):
    """A storage that is not of this machine."""

    is_local = False


def test_requests_to_another_machine_are_under_way_together() -> None:
    together = threading.Barrier(REQUESTS_AT_ONCE, timeout=60)

    def ask(number: int) -> int:
        together.wait()  # passes when as many are there
        return -number

    count = 2 * 4096  # more than a pool is given at once
    assert list(request_all(Far(), ask, range(count))) == [-number for number in range(count)]


def test_on_a_disk_one_comes_after_the_other() -> None:
    threads = list(request_all(LocalStorage(), lambda _: threading.current_thread(), range(3)))
    assert set(threads) == {threading.main_thread()}
