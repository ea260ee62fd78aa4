"""Answers of handlers that wait for something else before they are awaited."""

from asyncio import iscoroutine

from rmq_core.remoting.connection import HandlerAnswer
from rmq_core.remoting.header import RemotingCommand


async def awaited(answer: HandlerAnswer) -> RemotingCommand | None:
    """Await an answer, in each form that a handler may return. Raises what its work raises."""
    return answer if isinstance(answer, RemotingCommand) or answer is None else await answer


def drop(answer: HandlerAnswer) -> None:
    """Close the coroutine of an answer that is no longer needed."""
    if iscoroutine(answer):
        answer.close()
