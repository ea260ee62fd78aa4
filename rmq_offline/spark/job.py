"""Shell of every spark-submit job: arguments in, one JSON report out, exit codes as of ``rmq``."""

import argparse
import functools
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.errors import NotAcceptedError, OptionError, RmqError, one_line
from rmq_formats.spark.session import session
from rmq_formats.spark.versions import unfit_library
from rmq_offline.job_arguments import EXIT_FAILED, JobParser, check_report
from rmq_offline.tasks.log_format import log_on_stderr

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")  # the last line of a Python traceback

_REFUSED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*) SQLSTATE: ")  # what a column refuses, by raise_error

_NOT_CONNECT: Final = (
    "a job works in the driver's JVM, which a session of Spark Connect does not give: "
    "unset SPARK_REMOTE, and start it with spark-submit where that is to be"
)

JobBody = Callable[[Any, SparkSession], tuple[dict[str, Any], int]]
"""Runs a job with the options that its check returns."""


def run_job(
    parser: JobParser,
    body: JobBody,
    *,
    check: Callable[[argparse.Namespace], Any] | None = None,
    needs_delta: Callable[[Any], bool] | None = None,
    arguments: list[str] | None = None,
) -> NoReturn:
    """Run a job's body in a session, print its report, and exit.

    Args:
        body: returns the report and the exit code.
        check: checks the arguments before a session is started, and returns the options; raises RmqError.
        needs_delta: whether the session needs Delta, which may have to be fetched; None is never.
    """
    parsed = parser.parse_args(arguments)
    try:
        if os.environ.get("SPARK_REMOTE"):
            raise OptionError(_NOT_CONNECT)
        options = check(parsed) if check else parsed
        check_report(parsed.report, getattr(parsed, "store", None))
        interrupted: list[int] = []
        signal.signal(signal.SIGINT, functools.partial(_interrupt, interrupted))
        spark = _session(parser.prog, needs_delta is not None and needs_delta(options))
        is_interrupted = False
        try:
            if interrupted:  # where the start swallowed it, see _interrupt
                raise KeyboardInterrupt
            with log_on_stderr(parser.prog):
                report, code = body(options, spark)
        except (KeyboardInterrupt, Exception):
            # A call to the JVM on the interrupt's way up, such as of a ``with``, may fail in its place. The traceback
            # is let go here, and with it the connection that waits for an answer.
            is_interrupted = bool(interrupted)
            if not is_interrupted:
                raise
        finally:
            # A second Ctrl-C while the session stops would print Py4J's own traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not is_interrupted:
                spark.stop()
        if is_interrupted:
            _stop_silently(spark)
            raise KeyboardInterrupt
        line = json.dumps(report)
        if parsed.report:
            Path(parsed.report).write_text(line + "\n", encoding="utf-8")
        print(line, flush=True)  # noqa: T201 # the report is the job's output
    except NotAcceptedError as error:
        _exit(parser, error.with_command(["spark-submit", *sys.argv]))
    except RmqError as error:
        _exit(parser, str(error))
    except (PySparkException, Py4JError) as error:  # errors of queries, and of tasks outside of queries
        _exit(parser, spark_cause(error))
    except KeyboardInterrupt:
        _exit(parser, "interrupted", 130)
    except BrokenPipeError:
        _exit(parser, "output closed")
    except OSError as error:
        _exit(parser, _os_fault(error, parsed.report))
    sys.stdout.flush()
    sys.exit(code)


def _session(name: str, delta: bool) -> SparkSession:
    """Start the session. Its JVM ignores Ctrl-C: left alone, it goes on, and prints a traceback of Java's at last."""
    try:
        return session(name, delta=delta)
    except KeyboardInterrupt:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        for child in children.read_text().split() if children.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)  # at which it tidies up
        raise


def _stop_silently(spark: SparkSession) -> None:
    """Stop a session with Java's log turned off: each running task would log its end."""
    with suppress(Py4JError, PySparkException):
        spark.sparkContext.setLogLevel("OFF")
    with suppress(Py4JError, PySparkException):
        spark.stop()


def _interrupt(interrupted: list[int], number: int, _frame: FrameType | None) -> NoReturn:
    """Note the signal, and end the call to the JVM that is under way, of which Py4J would log a traceback.

    Spark's own handler asks the JVM to cancel its jobs, in the middle of that call; to stop the session does that, too.
    Python drops what is raised in a hook of a fork (``logging`` has one, and Spark forks to start its JVM) or in a
    finalizer, and prints a traceback of it: hence the note, and the silence.
    """
    interrupted.append(number)
    logging.disable()
    sys.unraisablehook = lambda _dropped: None
    raise KeyboardInterrupt


def spark_cause(error: BaseException) -> str:
    """Find the line that names the cause in the error of a Python worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        kind, _, text = line.partition(": ")
        if kind.startswith("rmq_formats.errors."):
            return text
    refused = _REFUSED.search(str(error))
    if refused:
        return refused[1]
    raised = [line for line in lines if _RAISED.match(line)]
    if "Traceback (most recent call last)" in str(error) and raised:
        return raised[-1]
    # Py4J's first line names the call, the next the failure in the JVM.
    failure = next((line[2:] for line in lines if line.startswith(": ")), None)
    if failure:
        return unfit_library(failure) or failure
    return lines[0] if lines else type(error).__name__


def _os_fault(error: OSError, report: str | None) -> str:
    """Return the line of an operating system's error; pyarrow's errors of object stores have a text alone."""
    name = error.filename or report  # as a full disk for the report, which the system reports without a name
    return f"{name}: {error.strerror}" if name and error.strerror else str(error)


def _exit(parser: JobParser, message: str, code: int = EXIT_FAILED) -> NoReturn:
    print(f"{parser.prog}: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)
