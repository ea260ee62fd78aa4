"""Processes of the project's commands that need not import anything: forks of one that has imported it all.

Python takes 1.6 s of processor time to import numba, pyarrow and the kernels; a fork of a process that has them takes
milliseconds. What is forked is a process of its own all the same, with its own arguments, environment, files and
signals, and a child of the test, which waits for it as for any other. ``Popen`` and ``run`` are as in ``subprocess``.
That commands start from nothing is shown by ``tests/broker/test_start.py`` and ``tests/cli/test_main.py``.
"""

import atexit
import ctypes
import functools
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import rmq_cli
import rmq_core
import rmq_formats
import rmq_offline

_ROOT = Path(__file__).parents[3]
_SET_CHILD_SUBREAPER = 36  # prctl: a process whose parent has ended becomes a child of this one
_READ_BY_IMPORTS = ("PYTHON", "NUMBA", "LD_")
_REQUEST_BYTES = 1 << 17
_NEEDS_SPARK = ("rmq_formats.spark", "rmq_offline.spark")


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen`` of ``[sys.executable, "-c", …]``, or ``-m``, or a script, forked from a warm process."""

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        *others: Any,
    ) -> None:
        """Fork; the parameters are those of Python's own ``Popen``, which starts what is no such command."""
        environment = dict(os.environ if env is None else env)
        if args[0] != sys.executable or pass_fds or _read_by_imports(environment) != _read_by_imports(dict(os.environ)):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others)
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[3:9]
        request = {
            "arguments": [os.fspath(one) for one in args[1:]], "environment": environment,
            "directory": str(cwd or Path.cwd()), "own_session": others[14],
        }  # fmt: skip
        files = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _warm().fork(request, files)
        self._child_created = True
        null = getattr(self, "_devnull", None)
        for theirs, ours in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
            if -1 not in (theirs, ours) and theirs != null:
                os.close(theirs)
        if null is not None:
            os.close(null)
        self._closed_child_pipe_fds = True


def run(
    command: list[Any],
    *,
    input: Any = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of such a command."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _read_by_imports(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_BY_IMPORTS)}


class _Warm:
    """A process that has imported everything, and forks at request."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        code = "from tests.support.processes.warm_processes import serve; serve()"
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(number)], pass_fds=[number], stdin=subprocess.DEVNULL, cwd=_ROOT
            )

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """A new process with these files as its standard input, output and errors; returns its number."""
        socket.send_fds(self._ours, [json.dumps(request).encode()], files)
        told = self._ours.recv(64)
        assert told, "the warm process has ended"
        return int(told)


@functools.cache
def _warm() -> _Warm:
    """The warm process of this process; it ends with it."""
    return _Warm()


def serve() -> None:
    """Import everything, then fork at each request."""
    for package in (rmq_formats, rmq_core, rmq_offline, rmq_cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_NEEDS_SPARK):
                importlib.import_module(module.name)
    asking = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, files, _, _ = socket.recv_fds(asking, _REQUEST_BYTES, 3)
        if not data:
            return
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:  # its parent ends, so that it becomes a child of the test
                os.write(writing, str(pid).encode())
                os._exit(0)
            asking.close()
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests that run under nohup ignore
            _end(_become, json.loads(data), files)
        os.waitpid(between, 0)
        asking.send(os.read(reading, 64))
        for file in (reading, writing, *files):
            os.close(file)


def _end(command: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run a command and exit as Python does, but for the memory, which need not be cleared."""
    code: Any = 0
    try:
        command(*arguments)
    except SystemExit as asked:
        code = asked.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit(1 if isinstance(code, str) else code or 0)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run a command in this process as if Python had been started with it."""
    if request["own_session"]:
        os.setsid()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    os.closerange(3, max(files) + 3)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    what, *rest = request["arguments"]
    if what == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(rest[0], vars(sys.modules["__main__"]))
    elif what == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [what, *rest]
        sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")
