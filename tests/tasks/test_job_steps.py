"""Jobs in common batches: each gets its own results, and an error ends the job whose task raised it."""

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.tasks.job_steps import JobSteps, TaskBatch, run_alone, run_together
from rmq_offline.tasks.runner import ProcessRunner


def halve(number: int) -> int:
    if number % 2:
        raise StoreError(f"{number} is odd")
    return number // 2


def job(numbers: list[int], batches: int, told: list[int], cleaned: list[str]) -> JobSteps[list[int]]:
    try:
        for _ in range(batches):
            numbers = yield TaskBatch(halve, numbers, told.append)
    finally:
        cleaned.append("done")
    return numbers


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_of_different_lengths_and_one_that_fails(processes: int) -> None:
    told: list[int] = []
    cleaned: list[str] = []
    jobs = [job([8, 16], 2, told, cleaned), job([4, 3], 2, told, cleaned), job([], 1, told, cleaned)]
    done, failed, empty = run_together([*jobs, job([64], 3, told, cleaned)], ProcessRunner(processes))[:3]
    assert (done, empty) == ([2, 4], [])
    assert str(failed) == "3 is odd"
    assert sorted(told) == [2, 2, 4, 4, 8, 8, 16, 32]
    assert cleaned == ["done"] * 4


def test_a_job_alone_raises_what_its_tasks_raise() -> None:
    cleaned: list[str] = []
    assert run_alone(job([8], 3, [], cleaned), ProcessRunner(1)) == [1]
    with pytest.raises(StoreError, match="1 is odd"):
        run_alone(job([2], 2, [], cleaned), ProcessRunner(1))
    assert cleaned == ["done"] * 2


def test_what_is_no_fault_of_a_store_ends_all_and_leaves_nothing_behind() -> None:
    cleaned: list[str] = []

    def other(error: type[BaseException]) -> JobSteps[list[int]]:
        try:
            yield TaskBatch(lambda _: 1 // 0, [1])
        finally:
            cleaned.append(error.__name__)
        return []

    with pytest.raises(ZeroDivisionError):
        run_together([job([8], 2, [], cleaned), other(ZeroDivisionError)], ProcessRunner(1))
    assert sorted(cleaned) == ["ZeroDivisionError", "done"]
