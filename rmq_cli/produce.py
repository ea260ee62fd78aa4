"""``rmq produce``: sends lines of stdin, or of a file, as messages."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_cli import output
from rmq_cli.access import with_access
from rmq_formats.errors import OptionError, RmqError

if TYPE_CHECKING:
    from rmq_core.client import Message, Producer, SendResult
    from rmq_core.client.access import Access

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
NAMESRV_HELP: Final = "The name servers, separated by semicolons."
_PIECE_BYTES: Final = 1 << 16
_MAX_LINE_BYTES: Final = 16 << 20  # as a frame of the protocol: no broker takes more
_PIECES_AHEAD: Final = 4

Namesrv = Annotated[str, typer.Option(metavar="HOST:PORT", envvar="NAMESRV_ADDR", help=NAMESRV_HELP)]


@with_access
def produce(
    access: "Access",
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Lines to send. [default: stdin]", show_default=False)
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    topic: Annotated[
        str | None, typer.Option(metavar="T", help="The topic; with --json, lines may name their own.")
    ] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAG", help="The tag of all messages.")] = None,
    keys: Annotated[str, typer.Option(metavar="K", help="The keys of all messages, separated by spaces.")] = "",
    group: Annotated[str, typer.Option(metavar="G", help="The producer group.")] = "CONSOLE_PRODUCER",
    in_flight: Annotated[
        int, typer.Option(min=1, max=4096, metavar="N", help="Sends in flight at a time; 1 keeps the lines' order.")
    ] = 32,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For a send with all its retries.")] = 3.0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Lines are JSON objects as rmq consume --json prints them; prints one for each send."
        ),
    ] = False,
) -> int:
    """Send each line as a message.

    Empty lines are skipped: brokers refuse messages without a body. The first line that cannot be sent ends
    the command, and is named; lines before it may have been sent or not.
    """
    if topic is None and not as_json:
        raise OptionError("give --topic, or --json and lines that have topics")
    if as_json and (tags is not None or keys):
        raise OptionError("--json: tags and keys are in the lines")
    from rmq_core.client import ProducerOptions  # noqa: PLC0415 # --help does not need it
    from rmq_core.client.json_lines import message_of_line  # noqa: PLC0415
    from rmq_core.client.message import Message  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    def message(line: bytes) -> "Message":
        return message_of_line(line, topic) if as_json else Message(topic or "", line, tags=tags, keys=keys)

    async def send_all() -> int:
        from rmq_core.client import Producer  # noqa: PLC0415

        options = ProducerOptions(send_timeout_s=timeout, tls=access.tls)
        async with Producer(namesrv, group, options, credentials=access.credentials) as producer:
            with output.Lines() as lines:
                return await _Sending(producer, message, lines if as_json else None).run(file, in_flight)

    count = run(send_all())
    if not as_json:
        sys.stderr.write(f"{output.counted(count, 'message')} sent\n")
    return output.EXIT_CLEAN


class LineError(RmqError):
    """A line that could not be sent."""

    def __init__(self, number: int, error: RmqError | str, sent: int) -> None:
        super().__init__(f"line {number}: {error} ({output.counted(sent, 'message')} sent)")


class _Sending:
    """Workers that send lines; the first failure ends all."""

    def __init__(
        self, producer: "Producer", message: Callable[[bytes], "Message"], results: output.Lines | None
    ) -> None:
        self._producer = producer
        self._message = message
        self._results = results
        self._sent = 0
        self._error: Exception | None = None
        self._failed = asyncio.Event()

    async def run(self, file: Path | None, workers: int) -> int:
        """Send all lines; return their number. Raises LineError if a line could not be sent, and OSError.

        An error of the results' output ends the work, too: StoreError for a full disk, BrokenPipeError.
        """
        lines: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(2 * workers)
        create = asyncio.get_running_loop().create_task
        feeding, failing = create(self._feed(file, lines, workers)), create(self._failed.wait())
        working = [create(self._work(lines)) for _ in range(workers)]
        await asyncio.wait([feeding, failing], return_when=asyncio.FIRST_COMPLETED)
        try:
            if feeding.done():
                await feeding
                await asyncio.gather(*working)
        finally:
            for task in (feeding, failing, *working):
                task.cancel()
            await asyncio.gather(feeding, failing, *working, return_exceptions=True)
        if self._error is not None:
            raise self._error
        return self._sent

    async def _feed(self, file: Path | None, lines: "asyncio.Queue[tuple[int, bytes] | None]", workers: int) -> None:
        number = 0
        async for line in read_lines(file):
            number += 1
            if line:
                await lines.put((number, line))
        for _ in range(workers):
            await lines.put(None)

    async def _work(self, lines: "asyncio.Queue[tuple[int, bytes] | None]") -> None:
        while (numbered := await lines.get()) is not None:
            number, line = numbered
            try:
                result = await self._producer.send(self._message(line))
            except RmqError as error:
                self._fail(LineError(number, error, self._sent))
                return
            self._sent += 1
            try:
                if self._results is not None:
                    self._results.write(_result_line(number, result))
            except (RmqError, OSError) as error:
                self._fail(error)
                return

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._failed.set()


def _result_line(number: int, result: "SendResult") -> bytes:
    queue = {
        "topic": result.queue.topic, "broker_name": result.queue.broker_name, "queue_id": result.queue.queue_id,
    }  # fmt: skip
    ids = {"queue_offset": result.queue_offset, "msg_id": result.msg_id, "offset_msg_id": result.offset_msg_id}
    return output.json_line({"line": number, "status": result.status.name, **queue, **ids})


async def read_lines(file: Path | None) -> AsyncIterator[bytes]:
    """Yield the lines of a file, or of stdin, as they come. Raises OSError, or LineError for a line too long."""
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    credit = threading.Semaphore(_PIECES_AHEAD)
    loop = asyncio.get_running_loop()
    # A daemon, and by os.read: at the process's end nobody waits for a terminal's next line.
    threading.Thread(target=_read_pieces, args=(file, loop, pieces, credit), daemon=True).start()
    rest, number = b"", 0
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise piece
        credit.release()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            yield line.removesuffix(b"\r")
        if len(rest) > _MAX_LINE_BYTES:
            raise LineError(number + 1, f"more than {_MAX_LINE_BYTES} bytes without an end", number)
    if rest:
        yield rest


def _read_pieces(
    file: Path | None,
    loop: asyncio.AbstractEventLoop,
    pieces: "asyncio.Queue[bytes | OSError]",
    credit: threading.Semaphore,
) -> None:
    """Read pieces of the input to its end, some pieces ahead."""
    with suppress(RuntimeError):  # the loop is closed: nobody reads any more
        try:
            descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
            while True:
                credit.acquire()
                piece = os.read(descriptor, _PIECE_BYTES)
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
                if not piece:
                    return
        except OSError as error:
            if error.filename is None and file is not None:  # a read's has none
                error.filename = str(file)
            loop.call_soon_threadsafe(pieces.put_nowait, error)
