"""The boundary of ``rmq``: exit codes, one line for each error, pipes and signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from rmq_cli import main as cli_main
from rmq_cli.inspect import run as inspect_run
from rmq_cli.main import COMMANDS
from rmq_formats.errors import LengthError, StoreError
from tests.cli.conftest import Rmq, one_line
from tests.support.processes import warm_processes

PROGRAM = [sys.executable, "-c", "from rmq_cli.main import main; main()"]


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return warm_processes.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options
    )


def raising(error: BaseException) -> Callable[..., int]:
    def work(*_: object) -> int:
        raise error

    return work


def test_the_version_is_that_of_the_package(rmq: Rmq) -> None:
    done = rmq("--version")
    assert (done.exit_code, done.stdout) == (0, f"rmq {version('rmq-lake')}\n")


def test_help_names_every_command(rmq: Rmq) -> None:
    done = rmq("--help")
    assert done.exit_code == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_that_fits_80_columns(rmq: Rmq, command: str) -> None:
    done = rmq(command, "--help")
    assert done.exit_code == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_help_and_wrong_arguments_do_not_load_what_is_slow() -> None:
    code = (
        "import sys\nfrom rmq_cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "loaded = {'numba', 'pyarrow', 'numpy', 'llvmlite'} & set(sys.modules)\nprint(code, loaded)"
    )
    for arguments, wanted in ((["--help"], "0 set()"), (["query", "x"], "2 set()"), (["dump", "--help"], "0 set()")):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.splitlines()[-1] == wanted


# Ctrl-C comes while the commands are imported.
INTERRUPTED = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "rmq_cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
from rmq_cli.entry import main
main()
"""


def test_ctrl_c_while_commands_are_imported_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rmq: interrupted\n")


# Serves until it says that it does, and then tells what it has loaded.
SERVE = """
import logging, os, signal, sys
from rmq_cli.main import main

class Stop(logging.Handler):
    def emit(self, record):
        if sys.argv[1] in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)

logging.getLogger().addHandler(Stop())
logging.getLogger().setLevel(logging.INFO)
try:
    main(sys.argv[2:])
except SystemExit as end:
    code = end.code
slow = {"numba", "llvmlite", "numpy", "pyarrow", "pandas", "rich", "pyspark"}
print(code, *sorted(slow & set(sys.modules)))
"""


def loaded(said: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, said, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.splitlines()[-1]


def test_a_name_server_does_not_load_what_is_slow() -> None:
    assert loaded("name server listens", "namesrv", "--listen", "127.0.0.1:0") == "0"


@pytest.mark.long
def test_a_broker_loads_what_its_kernels_need_and_no_more(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n")
    arguments = ["standalone", "--store", f"{tmp_path}/store", "-c", str(conf), "--listen", "127.0.0.1:0"]
    told = loaded("broker-a listens", *arguments, "--broker-listen", "127.0.0.1:0")
    assert told == "0 llvmlite numba numpy"


def test_all_of_a_broker_but_its_kernels_can_be_loaded_without_numba() -> None:
    code = (
        "import sys\nimport rmq_core.broker.metrics.http, rmq_core.broker.broker, rmq_core.namesrv.server\n"
        "print(*{'numba', 'llvmlite', 'pyarrow', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "No such command 'nosuch' (see rmq --help)"),
        (["dunp"], "No such command 'dunp'. Did you mean 'dump'? (see rmq --help)"),
        (["inspect"], "Missing argument 'PATH' (see rmq inspect --help)"),
        (["dump", "--nosuch", "x"], "No such option: --nosuch (see rmq dump --help)"),
        (["generate", "x", "--messages", "1"], "Missing option '--body-bytes' (see rmq generate --help)"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(rmq: Rmq, arguments: list[str], said: str) -> None:
    done = rmq(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert one_line(done.stderr) == said


@pytest.mark.parametrize("arguments", [["dump", "x", "--from", "y"], ["dump", "x", "--from", "-1"], ["dump", "a", "b"]])
def test_a_value_that_cannot_be_used_is_one_line_and_exit_2(rmq: Rmq, arguments: list[str]) -> None:
    done = rmq(*arguments)
    assert done.exit_code == 2
    assert "(see rmq dump --help)" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreError("the\nstore is\todd"), "the store is odd"),
        (LengthError("too long", 7, "/a/file", 1, 2), "/a/file: too long at offset 7 (expected 1, found 2)"),
        (PermissionError(13, "Permission denied", "/a/file"), "/a/file: Permission denied"),
        (IsADirectoryError(21, "Is a directory"), "some/path: Is a directory"),
        (OSError(5, "Input/output error"), "some/path: Input/output error"),
        (ZeroDivisionError("by 0"), "unexpected ZeroDivisionError: by 0 (RMQ_TRACEBACK=1 shows where)"),
    ],
)
def test_an_error_is_one_line_that_names_the_place(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr(inspect_run, "run", raising(error))
    done = rmq("inspect", "some/path")
    assert (done.exit_code, one_line(done.stderr)) == (2, said)


def test_a_traceback_is_printed_on_request(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_run, "run", raising(ZeroDivisionError("by 0")))
    monkeypatch.setenv("RMQ_TRACEBACK", "1")
    assert isinstance(rmq("inspect", "some/path").exception, ZeroDivisionError)


def test_ctrl_c_is_130_without_a_traceback(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_run, "run", raising(KeyboardInterrupt()))
    done = rmq("inspect", "some/path")
    assert (done.exit_code, one_line(done.stderr)) == (130, "interrupted")


def test_a_signal_in_the_middle_of_a_dump_is_130_without_a_traceback(golden: Callable[[str], Path]) -> None:
    # The pipe fills up and is not read: the program waits in a write when the signal comes.
    process = warm_processes.Popen(
        [*PROGRAM, "dump", str(golden("mixed") / "store"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read(1) == b"{"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130
    assert said == b"rmq: interrupted\n"


def test_a_closed_pipe_is_no_error(golden: Callable[[str], Path]) -> None:
    process = warm_processes.Popen(
        [*PROGRAM, "dump", str(golden("mixed") / "store"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_full_disk_of_stdout_is_one_line(golden: Callable[[str], Path]) -> None:
    with Path("/dev/full").open("w") as full:
        done = warm_processes.run(
            [*PROGRAM, "dump", str(golden("exotic") / "store")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, one_line(done.stderr)) == (2, "standard output: No space left on device")


def test_a_full_disk_under_a_table_is_one_line(golden: Callable[[str], Path]) -> None:
    with Path("/dev/full").open("w") as full:
        done = warm_processes.run(
            [*PROGRAM, "inspect", str(golden("exotic") / "store")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, one_line(done.stderr)) == (2, "standard output: No space left on device")


@pytest.mark.parametrize("arguments", [[], ["admin"]], ids=["rmq", "admin"])
def test_no_word_at_all_is_the_help(rmq: Rmq, arguments: list[str]) -> None:
    done = rmq(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.strip() == rmq(*arguments, "--help").stdout.strip()


@pytest.mark.parametrize(
    ("words", "completed"),
    [("rmq ver", "verify"), ("rmq verify --rep", "--report"), ("rmq admin topicL", "topicList")],
)
def test_a_shell_completes_commands_and_options(words: str, completed: str) -> None:
    variables = {"_RMQ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = run(env=os.environ | variables)
    assert (done.returncode, done.stdout.split()) == (0, [completed])


def test_a_tilde_is_the_user_s_home_in_every_path(
    rmq: Rmq, copy_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of("exotic")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert rmq("inspect", f"~/{store.name}").exit_code == 0
    assert rmq("rebuild", f"~/{store.name}", "--out=~/made", "--report=~/report.json").exit_code == 0
    assert (tmp_path / "made" / "consumequeue").is_dir()
    assert (tmp_path / "report.json").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("command", "above"), [("verify", False), ("verify", True), ("query", False), ("query", True), ("dump", True)]
)
def test_a_directory_too_high_or_too_low_names_the_store(
    rmq: Rmq, copy_of: Callable[[str], Path], command: str, above: bool
) -> None:
    store = copy_of("exotic")
    options = ["--topic", "T", "--key", "k"] if command == "query" else []
    done = rmq(command, store.parent if above else store / "commitlog", *options)
    assert done.exit_code == 2
    assert one_line(done.stderr).endswith(f"; {store} is one")


def test_a_topic_that_is_not_there_is_named(rmq: Rmq, golden: Callable[[str], Path]) -> None:
    store = golden("exotic") / "store"
    done = rmq("dump", store, "--topic", "NoSuchTopic", "--limit", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert one_line(done.stderr) == f"{store}: has nothing of a topic NoSuchTopic"
    done = rmq("query", store, "--topic", "NoSuchTopic", "--key", "k")
    assert (done.exit_code, done.stdout) == (1, "")
    assert one_line(done.stderr).endswith(f"{store}: no such topic: NoSuchTopic")


@pytest.mark.parametrize("arguments", [["inspect"], ["dump"], ["rebuild"], ["query", "--msg-id", "0" * 32]])
def test_a_missing_store_is_one_line_and_exit_2(rmq: Rmq, tmp_path: Path, arguments: list[str]) -> None:
    missing = tmp_path / "nowhere"
    done = rmq(arguments[0], missing, *arguments[1:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert one_line(done.stderr).startswith(f"{missing}: no such ")


def test_the_program_has_its_commands_exit_code(tmp_path: Path) -> None:
    done = run("inspect", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere" in one_line(done.stderr)


def test_a_file_that_cannot_be_opened_is_one_line_that_names_it(rmq: Rmq, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    loop = tmp_path / "commitlog" / f"{0:020d}"
    loop.symlink_to(loop)
    done = rmq("inspect", loop)
    assert done.exit_code == 2
    assert one_line(done.stderr) == f"{loop}: cannot be listed (Too many levels of symbolic links)"


def test_a_file_that_cannot_be_read_is_one_line_that_names_it(rmq: Rmq) -> None:
    done = rmq("dump", "/proc/self/mem")  # there is nothing at its beginning
    assert done.exit_code == 2
    assert one_line(done.stderr).startswith("/proc/self/mem: ")
    assert "Input/output error" in done.stderr


def test_an_endless_error_is_cut(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_run, "run", raising(StoreError("word " * 10_000)))
    assert len(one_line(rmq("inspect", "x").stderr)) < 1010


def test_closed_streams_and_poor_encodings_are_no_error(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, name, None)
            cli_main._prepare_streams()
            getattr(sys, name).close()
    with TextIOWrapper(BytesIO(), encoding="ascii") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        cli_main._prepare_streams()
        print("─ \udcff", end="", flush=True)  # noqa: T201
        assert stream.buffer.getvalue() == b"\\u2500 \\udcff"  # type: ignore[attr-defined]


def test_colours_are_for_terminals_only(rmq: Rmq, golden: Callable[[str], Path]) -> None:
    store = golden("crash") / "store"
    assert "\x1b" not in rmq("inspect", store).stdout
    leader, follower = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        process = warm_processes.Popen(
            [*PROGRAM, "inspect", str(store)], stdout=follower, stderr=subprocess.PIPE, env=environment
        )
        os.close(follower)
        shown = b""
        while piece := _read(terminal.fileno()):
            shown += piece
        assert process.wait(60) == 0
        assert process.stderr is not None
        process.stderr.close()
    assert b"\x1b[" in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the program has closed the terminal
        return b""
