"""Shell of every spark-submit job: arguments in, one JSON report out, exit codes as of ``rmq``."""

import argparse
import functools
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.errors import NotAcceptedError, OptionError, RmqError, one_line
from rmq_formats.read.stores import find_stores, names_several
from rmq_formats.spark.session import session
from rmq_formats.spark.versions import unfit_library
from rmq_formats.storage.broker_conf import BrokerConf, use_broker_conf
from rmq_formats.tasks.log_format import PrintableFormatter
from rmq_formats.tasks.size_options import CONFIG_HELP, SIZE_OPTIONS
from rmq_formats.verify.phases.plan import VerifyOptions

EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")  # the last line of a Python traceback

_REFUSED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*) SQLSTATE: ")  # what a column refuses, by raise_error

_NOT_CONNECT: Final = (
    "a job works in the driver's JVM, which a session of Spark Connect does not give: "
    "unset SPARK_REMOTE, and start it with spark-submit where that is to be"
)

JobBody = Callable[[argparse.Namespace, SparkSession], tuple[dict[str, Any], int]]
Value = TypeVar("Value")


class JobParser(argparse.ArgumentParser):
    """Argument parser of a job that reports a wrong argument in one line, and of an unknown one the name alone."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; values of unknown ones are not shown, since they may be secrets."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
            self.error(f"unknown arguments: {' '.join(names or unknown)}")
        for name, value in vars(arguments).items():
            setattr(arguments, name, expand_home(value))
        return arguments

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with 2."""
        sys.stderr.write(f"{self.prog}: {one_line(message)} (see --help)\n")
        sys.exit(EXIT_FAILED)


def expand_home(value: Any) -> Any:
    """Replace a leading ``~`` of a path by the user's home; a shell does not within ``--out=~/x``."""
    if isinstance(value, list):
        return [expand_home(path) for path in value]
    if isinstance(value, str) and (value == "~" or value.startswith("~/")):
        return os.path.expanduser(value)  # noqa: PTH111 # of URIs, too
    return value


def job_parser(name: str, description: str) -> JobParser:
    """Create a parser with the arguments that every job has."""
    parser = JobParser(prog=f"{name}.py", description=description, allow_abbrev=False)
    parser.add_argument("--report", metavar="FILE", help="write the JSON report to this file, too")
    return parser


def add_stores(parser: JobParser, *, required: bool = True) -> None:
    """Add the argument ``--store`` of a job over several stores; ``is_several`` tests its value."""
    parser.add_argument(
        "--store",
        type=path_for_all,
        required=required,
        action="append",
        help="the store's root directory, or a URI; several: given again, a pattern, or a TOML file that names them",
    )


def add_sizes(parser: JobParser) -> None:
    """Add ``-c broker.conf`` and the options of a store's sizes; ``store_sizes`` makes options of them."""
    add_broker_conf(parser)
    for option in SIZE_OPTIONS:
        choices = option.metavar.split("|") if "|" in option.metavar else None
        parser.add_argument(
            f"--{option.name.replace('_', '-')}", type=option.kind, choices=choices, help=option.help,
            metavar=None if choices else option.metavar,
        )  # fmt: skip


def add_broker_conf(parser: JobParser) -> None:
    """Add ``-c broker.conf``; ``follow_broker_conf`` reads it."""
    parser.add_argument("-c", "--config", metavar="FILE", help=CONFIG_HELP)


def follow_broker_conf(arguments: argparse.Namespace) -> BrokerConf | None:
    """Apply the operator's broker.conf to the log paths of the job's stores. Raises OptionError."""
    if arguments.config is None:
        return None
    stores = [arguments.store] if isinstance(arguments.store, str) else arguments.store or []
    if stores and is_several(stores):
        stores = [store.path for store in find_stores(stores)]
    return use_broker_conf(arguments.config, stores)


def store_sizes(job_arguments: argparse.Namespace) -> VerifyOptions:
    """Make options of the arguments of ``add_sizes``. Raises OptionError."""
    arguments = {option.name: getattr(job_arguments, option.name) for option in SIZE_OPTIONS}
    return VerifyOptions.from_arguments(
        arguments, follow_broker_conf(job_arguments), getattr(job_arguments, "tier", None)
    )


def is_several(stores: list[str]) -> bool:
    """Return whether ``--store`` names several stores."""
    return len(stores) > 1 or names_several(stores[0])


def option_name(argument: str) -> str:
    """Return the option of an argument on the command line."""
    return f"--{argument.replace('_', '-')}"


def parse_argument(arguments: argparse.Namespace, argument: str, parse: Callable[[str], Value]) -> Value | None:
    """Parse an argument with a parser of ``option_values``; None if the argument is absent.

    Raises:
        OptionError: naming the argument that does not parse.
    """
    text = getattr(arguments, argument)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"{option_name(argument)} {text!r}: {error}") from error


def path_for_all(path: str) -> str:
    """Make a path absolute, since executors do not run in the driver's working directory; a URI stays as it is."""
    return path if not path or "://" in path else str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111


def run_job(
    parser: JobParser,
    body: JobBody,
    *,
    check: Callable[[argparse.Namespace], None] | None = None,
    needs_delta: Callable[[argparse.Namespace], bool] | None = None,
    arguments: list[str] | None = None,
) -> NoReturn:
    """Run a job's body in a session, print its report, and exit.

    Args:
        parser: see ``job_parser``.
        body: returns the report and the exit code.
        check: checks the arguments before a session is started; raises RmqError.
        needs_delta: whether the session has to have Delta, which may have to be fetched; None is never.
        arguments: instead of the command line.
    """
    parsed = parser.parse_args(arguments)
    try:
        if os.environ.get("SPARK_REMOTE"):
            raise OptionError(_NOT_CONNECT)
        if check:
            check(parsed)
        interrupted: list[int] = []
        signal.signal(signal.SIGINT, functools.partial(_interrupt, interrupted))
        spark = _session(parser.prog, needs_delta is not None and needs_delta(parsed))
        is_interrupted = False
        try:
            if interrupted:  # where the start swallowed it, see _interrupt
                raise KeyboardInterrupt
            with _log_on_stderr(parser.prog):
                report, code = body(parsed, spark)
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
        _fail(parser, error.with_command(["spark-submit", *sys.argv]))
    except RmqError as error:
        _fail(parser, str(error))
    except (PySparkException, Py4JError) as error:  # errors of queries, and of tasks outside of queries
        _fail(parser, spark_cause(error))
    except KeyboardInterrupt:
        _leave(parser, "interrupted", 130)
    except BrokenPipeError:
        _leave(parser, "output closed", EXIT_FAILED)
    except OSError as error:
        _fail(parser, _os_fault(error, parsed.report))
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


@contextmanager
def _log_on_stderr(name: str) -> Iterator[None]:
    """Log an export's progress to stderr, one line per batch, beside the warnings."""
    handler, log = logging.StreamHandler(), logging.getLogger("rmq_formats.lakehouse")
    handler.setFormatter(PrintableFormatter(f"{name}: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


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


def _fail(parser: JobParser, message: str) -> NoReturn:
    _leave(parser, message, EXIT_FAILED)


def _leave(parser: JobParser, message: str, code: int) -> NoReturn:
    print(f"{parser.prog}: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(code)
