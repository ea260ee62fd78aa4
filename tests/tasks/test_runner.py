"""Runners give results in the order of their arguments, and leave no process behind."""

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from rmq_offline.tasks.runner import ProcessRunner


def slow_square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_results_come_in_the_order_of_the_arguments(processes: int, count: int) -> None:
    told: list[int] = []
    results = ProcessRunner(processes).map(slow_square, range(count), told.append)
    assert results == told == [number * number for number in range(count)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_task_is_raised(processes: int) -> None:
    with pytest.raises(ValueError, match="three"):
        ProcessRunner(processes).map(fail_at_three, range(6))


def test_one_task_alone_runs_in_this_process() -> None:
    assert ProcessRunner(4).map(own_pid, [0]) == [os.getpid()]
    assert os.getpid() not in ProcessRunner(2).map(own_pid, [0, 1])


def own_pid(_number: int) -> int:
    return os.getpid()


def test_without_a_number_each_processor_has_a_process() -> None:
    assert ProcessRunner().parallelism == len(os.sched_getaffinity(0))


def tell_pid_and_sleep(telling: Connection) -> None:
    telling.send(os.getpid())
    time.sleep(60)


def run_two(telling: Connection) -> None:
    ProcessRunner(2).map(tell_pid_and_sleep, [telling, telling])


def test_the_processes_of_a_killed_driver_end() -> None:
    context = get_context("fork")
    listening, telling = context.Pipe(duplex=False)
    driver = context.Process(target=run_two, args=(telling,))
    driver.start()
    workers = [listening.recv(), listening.recv()]
    driver.kill()
    driver.join()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(pid) for pid in workers)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie, as orphans are where no init reaps them."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
