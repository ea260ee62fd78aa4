"""The program ``rmq``: imports its commands, and ends with one line if a signal interrupts the import."""

import signal
import sys


def main() -> None:
    """Run the command line of the process, and exit."""
    try:
        from rmq_cli.main import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.stderr.write("rmq: interrupted\n")
        sys.exit(128 + signal.SIGINT)  # as main does behind the imports
