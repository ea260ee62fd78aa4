"""Credentials and TLS on the command line: nothing is sent where they cannot be used, and no secret is an argument."""

from pathlib import Path

import pytest

from jobs import replay
from tests.cli.conftest import Rmq, one_line

SECRET = "s3cret-of-the-tests"
COMMANDS = [["produce", "--topic", "T"], ["consume", "--topic", "T"], ["admin", "topicList"]]
NOBODY = "--namesrv", "127.0.0.1:1"  # asked, it would say that it cannot be connected to


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_secret_is_no_argument(rmq: Rmq, command: list[str]) -> None:
    for given in ([f"--secret-key={SECRET}"], ["--secret-key", SECRET], [f"--secretKey={SECRET}"]):
        done = rmq(*command, *NOBODY, *given)
        assert done.exit_code == 2
        assert "No such option: --secret" in one_line(done.stderr)
        assert SECRET not in done.output
    assert "--secret-key-file" in rmq(*command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_unusable_access_options_are_reported_before_any_request(rmq: Rmq, command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: a\nsecretKey: {SECRET}\n")
    file.chmod(0o644)
    for given, said in (
        (["--credentials", file], f"{file}: other users may read or change the file (mode 0644). Run chmod 600 on it."),
        (["--access-key", "a"], "accessKey requires secretKey: without both, requests cannot be signed"),
        (["--access-key", "a", "--secret-key-file", tmp_path / "no"], f"{tmp_path / 'no'}: No such file or directory"),
        (
            ["--tls-ca", "a.pem"],
            "tls.client.trustCertPath requires useTLS=true: without it connections would be plain",
        ),
        (["--tls-insecure"], "tls.client.authServer requires useTLS=true: without it connections would be plain"),
        (["--tls", "--tls-ca", file], f"tls.client.trustCertPath {file}: no certificate, or key of it, in PEM"),
    ):
        done = rmq(*command, *NOBODY, *given)
        assert (done.exit_code, one_line(done.stderr)) == (2, said)


def test_a_replay_shows_no_value_of_an_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([f"--secret-key={SECRET}"], ["--secret-key", SECRET]):
        with pytest.raises(SystemExit) as ended:
            replay.parser().parse_args(["--store", "s", "--to-namesrv", "n", *given])
        assert (ended.value.code, capsys.readouterr().err) == (
            2, "replay.py: unknown arguments: --secret-key (see --help)\n",
        )  # fmt: skip
