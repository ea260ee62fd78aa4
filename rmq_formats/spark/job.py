"""The shell around a spark-submit job: arguments in, one JSON report out, exit codes of ``rmq``."""

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.errors import OptionError, RmqError
from rmq_formats.spark.session import session

EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")  # the last line of a Python traceback

Body = Callable[[argparse.Namespace, SparkSession], tuple[dict[str, Any], int]]
Value = TypeVar("Value")


class JobParser(argparse.ArgumentParser):
    """Arguments of a job; a wrong one is told in one line."""

    def error(self, message: str) -> NoReturn:
        """One line on stderr, exit 2."""
        sys.stderr.write(f"{self.prog}: {message} (see --help)\n")
        sys.exit(EXIT_FAILED)


def job_parser(name: str, description: str) -> JobParser:
    """A parser with what every job has."""
    parser = JobParser(prog=f"{name}.py", description=description, allow_abbrev=False)
    parser.add_argument("--report", metavar="FILE", help="write the JSON report there too")
    return parser


def option_name(argument: str) -> str:
    """How an argument is given on the command line."""
    return f"--{argument.replace('_', '-')}"


def parsed(given: argparse.Namespace, argument: str, parse: Callable[[str], Value]) -> Value | None:
    """An argument as one of ``option_values`` reads it; None if it is not given.

    Raises:
        OptionError: it cannot be read; naming it.
    """
    text = getattr(given, argument)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"{option_name(argument)} {text!r}: {error}") from error


def path_for_all(path: str) -> str:
    """A path or URI as all machines have to take it: executors do not run in the driver's working directory."""
    return path if not path or "://" in path else str(Path(path).absolute())


def run_job(
    parser: JobParser,
    body: Body,
    *,
    check: Callable[[argparse.Namespace], None] | None = None,
    arguments: list[str] | None = None,
) -> NoReturn:
    """Run a job's body in a session and exit.

    Args:
        parser: see ``job_parser``.
        body: gives the report and the exit code.
        check: looks at the arguments before a session is started; raises RmqError.
        arguments: instead of the command line.
    """
    given = parser.parse_args(arguments)
    try:
        if check:
            check(given)
        spark = session(parser.prog)
        try:
            report, code = body(given, spark)
        finally:
            # A second Ctrl-C while the session stops would print Py4J's own traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            spark.stop()
        line = json.dumps(report)
        if given.report:
            Path(given.report).write_text(line + "\n", encoding="utf-8")
        print(line, flush=True)  # noqa: T201 # the report is the job's output
    except RmqError as error:
        _fail(parser, str(error))
    except (PySparkException, Py4JError) as error:  # of queries, and of tasks that no query runs
        _fail(parser, spark_cause(error))
    except KeyboardInterrupt:
        _leave(parser, "interrupted", 130)
    except BrokenPipeError:
        _leave(parser, "output closed", EXIT_FAILED)
    except OSError as error:
        _fail(parser, _os_fault(error, given.report))
    sys.stdout.flush()
    sys.exit(code)


def spark_cause(error: BaseException) -> str:
    """The line that says what went wrong, out of a failure in a Python worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        kind, _, text = line.partition(": ")
        if kind.startswith("rmq_formats.errors."):
            return text
    raised = [line for line in lines if _RAISED.match(line)]
    if "Traceback (most recent call last)" in str(error) and raised:
        return raised[-1]
    # Of a failure in the JVM Py4J says first which call it was.
    told = next((line[2:] for line in lines if line.startswith(": ")), None)
    return told or (lines[0] if lines else type(error).__name__)


def _os_fault(error: OSError, report: str | None) -> str:
    """The line of an error of the operating system; what pyarrow raises of an object store is a text alone."""
    name = error.filename or report  # a report's disk may be full, which the system says without a name
    return f"{name}: {error.strerror}" if name and error.strerror else str(error)


def _fail(parser: JobParser, message: str) -> NoReturn:
    _leave(parser, message, EXIT_FAILED)


def _leave(parser: JobParser, message: str, code: int) -> NoReturn:
    print(f"{parser.prog}: {message}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)
