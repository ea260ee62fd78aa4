"""Runs a function in a process of its own, whose memory nothing else has shaped."""

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_fresh_process(
    function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
) -> _Result:
    """Call a function of a module in a new process that logs nothing.

    Returns:
        What the function returns; an exception of the function is raised here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=logging.disable) as processes:
        return processes.submit(function, *arguments, **named).result()
