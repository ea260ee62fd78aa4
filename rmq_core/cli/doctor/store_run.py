"""The work of ``rmq doctor STORE``: answers an operator's questions, three lines each."""

from shlex import quote

from rich.console import Console
from rich.text import Text

from rmq_core.cli import output
from rmq_core.cli.output import printable
from rmq_formats.diagnosis.answers import Answer, Question
from rmq_formats.diagnosis.consumption import consumption_answers
from rmq_formats.diagnosis.log_lines import answers_of_logs
from rmq_formats.diagnosis.start import start_answers
from rmq_formats.errors import OptionError, StoreNotFoundError
from rmq_formats.storage.broker_conf import use_broker_conf
from rmq_formats.storage.nearby_store import holds_no_store
from rmq_formats.storage.segments import open_storage
from rmq_formats.verify.phases.plan import is_a_store


def run(store: str, config: str | None, logs: list[str], *, as_json: bool) -> int:
    """Answer the questions about a store. Returns the exit code. Raises RmqError."""
    storage, root = open_storage(store)
    if not storage.is_local:
        raise OptionError(f"{store}: rmq doctor looks at a store on a local disk or a shared mount")
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store, and not an address such as 127.0.0.1:10911")
    if not is_a_store(storage, root):
        raise StoreNotFoundError(holds_no_store(storage, root))
    conf = use_broker_conf(config, [root])
    answers = [*start_answers(root, conf), *consumption_answers(root), *answers_of_logs(logs, root)]
    if as_json:
        output.print_json({"job": "doctor", "store": root, "answers": answers})
    else:
        show(root, answers, output.console())
    return output.EXIT_FINDINGS if any(answer.is_fault for answer in answers) else output.EXIT_CLEAN


def show(root: str, answers: list[Answer], console: Console) -> None:
    """Print the answers by question."""
    for question in Question:
        console.print(Text(question.value.capitalize(), style="bold"))
        own = [answer for answer in answers if answer.question is question]
        for answer in own:
            style = "red" if answer.is_fault else "yellow"
            _print_line(console, "seen", answer.seen, style)
            _print_line(console, "why", answer.reason)
            _print_line(console, "next", answer.command)
        if not own:
            _print_line(console, "seen", "nothing that explains it")
            _print_line(console, "next", f"rmq verify {quote(root)}")


def _print_line(console: Console, name: str, text: str, style: str = "") -> None:
    """Print a line that is not broken, so that a command can be copied."""
    console.print(Text(f"  {name:<6}", style="dim").append(printable(text), style=style or "none"), soft_wrap=True)
