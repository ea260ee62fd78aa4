"""``docs/reference/commands.md``: an example for each command of ``rmq``, which runs and gives the printed output."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rmq_cli.main import COMMANDS
from tests.docs.pages import BLOCK, ROOT, Reader, words

PAGE = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
EXAMPLES = {
    section.partition("\n")[0].removeprefix("rmq "): BLOCK.findall(section) for section in PAGE.split("\n## ")[1:]
}
SERVERS = ("namesrv", "broker", "proxy", "standalone")
SPARK_JOBS = ("export", "import", "replay")
AT_A_BROKER = ("produce", "consume", "admin")
AT_REST = [name for name in EXAMPLES if name not in {*SERVERS, *SPARK_JOBS, *AT_A_BROKER, "offsets"}]


@contextmanager
def server(reader: Reader, name: str, *options: str) -> Iterator[str]:
    """Start an example's server at free ports, and yield the line that the page prints."""
    (_, command), (_, line) = EXAMPLES[name]
    with reader.serve(command, *options) as output:
        yield next(printed for printed in output if words(printed) == words(line))


def address(line: str) -> str:
    return re.findall(r"127\.0\.0\.1:\d+", line)[0]


def test_each_command_has_an_example_with_its_output() -> None:
    assert EXAMPLES.keys() == {*COMMANDS, "admin"}
    for name, blocks in EXAMPLES.items():
        (language, command), (result, _) = blocks
        assert (language, result) == ("sh", "text"), name
        assert f"rmq {name} " in command


@pytest.mark.long
def test_commands_on_stores_at_rest_print_what_the_page_prints(reader: Reader) -> None:
    for name in AT_REST:
        reader.run_blocks(EXAMPLES[name])


@pytest.mark.long
def test_commands_of_a_cluster_print_what_the_page_prints(reader: Reader) -> None:
    free = "127.0.0.1:0"
    with server(reader, "standalone", "--listen", free, "--broker-listen", free) as line:
        reader.environment |= {"NAMESRV_ADDR": address(line)}
        reader.places |= {"127.0.0.1:10911": line.split()[-1]}
        for name in AT_A_BROKER:
            reader.run_blocks(EXAMPLES[name])
    reader.run_blocks(EXAMPLES["offsets"])  # of a broker that is stopped: it writes them at its end


@pytest.mark.long
def test_servers_print_where_they_listen(reader: Reader) -> None:
    free = "127.0.0.1:0"
    reader.places |= {"127.0.0.1:10911": free, "127.0.0.1:8081": free}
    with server(reader, "namesrv", "--listen", free) as line:
        reader.places |= {"127.0.0.1:9876": address(line)}
        with server(reader, "broker"), server(reader, "proxy"):
            pass


@pytest.mark.long
@pytest.mark.spark
def test_jobs_print_what_the_page_prints(reader: Reader) -> None:
    for name in ("generate", "rebuild", *SPARK_JOBS):
        reader.run_blocks(EXAMPLES[name])
