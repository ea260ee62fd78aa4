"""The work of ``rmq doctor STORE``: answers an operator's questions, three lines each."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from shlex import quote
from typing import Final

from rich.console import Console
from rich.text import Text

from rmq_cli import output
from rmq_cli.commands import interruptible_workers
from rmq_cli.output import printable
from rmq_formats.errors import OptionError, StoreError, StoreNotFoundError
from rmq_formats.storage.broker_conf import use_broker_conf
from rmq_formats.storage.store_files import no_store_error, open_store
from rmq_offline.diagnosis.answers import Answer, Question
from rmq_offline.diagnosis.consumption import consumption_answers
from rmq_offline.diagnosis.log_lines import answers_of_logs
from rmq_offline.diagnosis.start import start_answers
from rmq_offline.diagnosis.verified import MAX_LOG_BYTES, compare_queues, is_readable, verified_answers
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions, is_a_store

_TAKES_CONFIG: Final = tuple(
    f"rmq {name} "
    for name in ("verify", "repair", "rebuild", "inspect", "query", "dump", "offsets", "checkpoint", "convert")
)

_LINE_CHARACTERS: Final = 1000  # names in a store may have any length


def run(store: str, config: str | None, logs: list[str], *, verifies: bool, as_json: bool) -> int:
    """Answer the questions about a store. Returns the exit code. Raises RmqError.

    With ``verifies`` log and queues are compared of a large log, too.
    """
    files = open_store(store)
    if not files.storage.is_local:
        raise OptionError(f"{store}: rmq doctor looks at a store on a local disk or a shared mount")
    if not files.storage.exists(files.root):
        raise StoreNotFoundError(f"{files.root}: no such store, and not an address such as 127.0.0.1:10911")
    if not is_a_store(files):
        raise StoreNotFoundError(no_store_error(files.storage, files.root))
    conf = use_broker_conf(config, [files.root])
    with interruptible_workers():
        comparison = compare_queues(
            files.root,
            VerifyOptions.from_arguments({}, conf),
            ProcessRunner(),
            largest_bytes=sys.maxsize if verifies else MAX_LOG_BYTES,
        )
    raw_answers = [
        *_readable(files.root, start_answers(files.root, conf)),
        *_readable(files.root, consumption_answers(files.root, comparison.report)),
        *verified_answers(files.root, comparison),
    ]
    raw_answers += answers_of_logs(logs, files.root)
    answers = [replace(answer, command=_with_config(answer.command, config)) for answer in raw_answers]
    if as_json:
        output.print_json({"job": "doctor", "store": files.root, "answers": answers})
    else:
        show(files.root, answers, _with_config(f"rmq verify {quote(files.root)}", config), output.console())
    return output.EXIT_FINDINGS if any(answer.is_fault for answer in answers) else output.EXIT_CLEAN


def _readable(root: str, answers: Iterator[Answer]) -> Iterator[Answer]:
    """Yield answers as far as the store can be read; a read error is the last answer."""
    try:
        yield from answers
    except (StoreError, OSError) as error:
        yield Answer(Question.START, str(error), "a broker does not start without it", f"ls -la {quote(root)}")


def _with_config(command: str, config: str | None) -> str:
    """Add the operator's broker.conf to a command that has the option ``--config``."""
    if config is None or not command.startswith(_TAKES_CONFIG) or "--what config" in command:
        return command
    option = f"-c {quote(config)}"
    return command.replace("-c broker.conf", option) if "-c broker.conf" in command else f"{command} {option}"


def show(root: str, answers: list[Answer], verification: str, console: Console) -> None:
    """Print the answers by question; where there is none, the command that verifies the store."""
    no_cause = "nothing that explains it"
    if not is_readable(root):
        no_cause += "; log and queues were not compared, since the log cannot be read"
    for question in Question:
        console.print(Text(question.value.capitalize(), style="bold"))
        question_answers = [answer for answer in answers if answer.question is question]
        for answer in question_answers:
            style = "red" if answer.is_fault else "yellow"
            _print_line(console, "seen", answer.seen, style)
            _print_line(console, "why", answer.reason)
            _print_line(console, "next", answer.command)
        if not question_answers:
            _print_line(console, "seen", no_cause)
            _print_line(console, "next", verification)


def _print_line(console: Console, name: str, text: str, style: str = "") -> None:
    """Print a line that is not broken, so that a command can be copied."""
    text = printable(text)
    if len(text) > _LINE_CHARACTERS:
        text = f"{text[:_LINE_CHARACTERS]}… (--json has all)"
    console.print(Text(f"  {name:<6}", style="dim").append(text, style=style or "none"), soft_wrap=True)
