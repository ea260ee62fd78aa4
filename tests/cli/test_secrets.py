"""No secret is in what servers and commands print, log, answer, show as processes or write, but in the users' file."""

import base64
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.certificates import Authority
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import COMMAND, Standalone, standalone

ADMIN, INNER, ALICE, WRONG = "Adm1n-s3cr3t+/=", "1nner-s3cr3t+/=", "Al1ce-s3cr3t+/=", "Wr0ng-s3cr3t+/="
KEY_PASSWORD = "key-password-🔑"  # of tests.support.certificates
_OF_BROKER = "RMQ_BROKER_INNER_CLIENT_AUTHENTICATION_CREDENTIALS"
SECRETS = (ADMIN, INNER, ALICE, WRONG, KEY_PASSWORD)
CONF = f"""mappedFileSizeCommitLog=1048576
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={{"username":"admin","password":"{ADMIN}"}}
tls.server.mode=permissive
tls.config.file=tls.properties
"""


def forms(secret: str) -> set[str]:
    """A secret as it is, in Base64, quoted, and as the texts of Python and JSON have it."""
    data = secret.encode()
    return {secret, base64.b64encode(data).decode(), quote(secret, safe=""), ascii(secret)[1:-1], data.hex()}


def assert_none(where: str, data: bytes) -> None:
    for secret in SECRETS:
        for form in forms(secret):
            assert form.encode() not in data, f"a secret is in {where}"


class Watched:
    """A guarded name server and broker, whose every output is looked through."""

    def __init__(self, running: Standalone, directory: Path) -> None:
        self.running, self.directory = running, directory

    def run(
        self, *arguments: str, secret: str = ADMIN, lines: str = "", name: str | None = "admin"
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command as a user, or as none; what it prints has no secret."""
        environ = {key: value for key, value in os.environ.items() if key != _OF_BROKER}
        login = {"RMQ_ACCESS_KEY": name, "RMQ_SECRET_KEY": secret} if name else {}
        done = warm_processes.run(
            [*COMMAND, *arguments],
            capture_output=True,
            timeout=60,
            check=False,
            input=lines.encode(),
            env={**environ, **login, "COLUMNS": "200"},
        )
        assert_none(" ".join(arguments), done.stdout + done.stderr)
        assert b"Traceback" not in done.stderr
        return done

    def admin(self, command: str, *arguments: str, **more: str) -> "subprocess.CompletedProcess[bytes]":
        """Run a command of ``rmq admin``."""
        return self.run("admin", command, "-n", self.running.namesrv, *arguments, **more)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("secrets")
    cert = Authority(directory).sign("server", "127.0.0.1", has_password=True)
    tls = directory / "tls.properties"
    tls.write_text(
        f"tls.server.certPath={cert.cert}\ntls.server.keyPath={cert.key}\ntls.server.keyPassword={KEY_PASSWORD}\n"
    )
    conf = directory / "broker.conf"
    conf.write_text(CONF.replace("tls.properties", str(tls)))
    for file in (tls, conf):
        file.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        inner = f'{{"accessKey":"inner","secretKey":"{INNER}"}}'
        patch.setenv(_OF_BROKER, inner)
        with standalone(
            directory / "store", "-c", str(conf), "--metrics-port", "0", "--log-format", "json", log=directory / "log"
        ) as running:
            yield Watched(running, directory)
            assert running.stop() == 0
    assert_none("the log", (directory / "log").read_bytes())
    found = []
    for file in (directory / "store").rglob("*"):
        if file.is_file() and any(secret.encode() in file.read_bytes() for secret in SECRETS):
            found.append(file.relative_to(directory / "store").as_posix())
            assert file.parent.stat().st_mode & 0o077 == 0
    assert set(found) <= {"config/access/accounts.json", "config/access/accounts.json.bak"}
    assert "config/access/accounts.json" in found


@pytest.mark.long
def test_users_are_created_and_listed_without_their_passwords(watched: Watched) -> None:
    assert watched.admin("createUser", "-u", "alice", lines=f"{ALICE}\n").returncode == 0
    for command, *arguments in (
        ["listUser"], ["getUser", "-u", "alice"], ["updateUser", "-u", "alice", "-s", "enable"], ["clusterList"],
        ["brokerStatus", "-b", watched.running.broker], ["getBrokerConfig", "-b", watched.running.broker],
        ["exportMetadata"],
    ):  # fmt: skip
        done = watched.admin(command, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        watched.admin(command, *arguments, "--json")
        assert watched.admin(command, *arguments, secret=WRONG).returncode == 2
        watched.admin(command, *arguments, secret=WRONG, name="eve")


@pytest.mark.parametrize("text", [
    f"accessKey: a\nsecretKey {ADMIN}\n", f"accessKey: [a\nsecretKey: {ADMIN}\n", f"secretKey: {ADMIN}\n",
    f"accessKey: a\nsecretKey: {ADMIN}\nsecretKye: {ADMIN}\n", f"{{{ADMIN}", f"\0{ADMIN}", f"{ADMIN}: {ADMIN}",
])  # fmt: skip
def test_a_broken_credentials_file_is_reported_without_the_secrets(watched: Watched, tmp_path: Path, text: str) -> None:
    broken = tmp_path / "tools.yml"
    broken.write_text(text)
    broken.chmod(0o600)
    done = watched.admin("topicStatus", "-t", "T", "--credentials", str(broken), name=None)
    assert done.returncode == 2, done.stdout


@pytest.mark.parametrize("line", [
    f'initAuthenticationUser={{"username":"a","password":"{ADMIN}"', f"initAuthenticationUser={ADMIN}",
    f'innerClientAuthenticationCredentials=["{ADMIN}"]',
    f'initAuthenticationUser={{"username":"","password":"{ADMIN}"}}',
    f'initAuthenticationUsr={{"username":"a","password":"{ADMIN}"}}',
])  # fmt: skip
def test_a_broken_setting_is_reported_without_the_secrets(watched: Watched, tmp_path: Path, line: str) -> None:
    (tmp_path / "broker.conf").write_text(f"authenticationEnabled=true\n{line}\n")
    free = "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"
    done = watched.run("standalone", "--store", str(tmp_path / "store"), *free, "-c", str(tmp_path / "broker.conf"))
    assert done.returncode == 2, done.stderr


def test_processes_and_metrics_show_none(watched: Watched) -> None:
    told = re.search(r"https?://127\.0\.0\.1:\d+/metrics", (watched.directory / "log").read_text())
    assert told
    with urllib.request.urlopen(told[0], timeout=60) as answer:
        assert_none("the metrics", answer.read())
    done = watched.run("produce", "--namesrv", watched.running.namesrv, "--topic", "T", lines="hello\n")
    assert done.returncode == 0, done.stderr
    for title in Path(f"/proc/{watched.running.process.pid}").glob("c[mo][dm]*"):  # cmdline and comm
        assert_none(str(title), title.read_bytes())
    assert watched.run("doctor", "--security", watched.running.broker).returncode in (0, 1)
