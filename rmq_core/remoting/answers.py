"""Answers that a handler has begun, and that wait for something else before they are awaited."""

from asyncio import iscoroutine

from rmq_core.remoting.connection import HandlerAnswer
from rmq_core.remoting.header import RemotingCommand


async def awaited(answer: HandlerAnswer) -> RemotingCommand | None:
    """Return an answer, whatever the form is in which a handler gives it. Raises what its work raises."""
    return answer if isinstance(answer, RemotingCommand) or answer is None else await answer


def drop(answer: HandlerAnswer) -> None:
    """End the work on an answer, unless that has ended: nobody will await it."""
    if iscoroutine(answer):
        answer.close()
