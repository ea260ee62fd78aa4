"""TLS at our name server and broker: Java's clients and mqadmin, and our commands; plain ones get nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq, one_line, rmq
from tests.interop import peer
from tests.support.certificates import Authority
from tests.support.processes.broker_processes import Standalone, configured

__all__ = ["rmq"]  # a fixture
pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("tls_against_java")]
MESSAGES = 60
# Java's own file of settings, too: its clients then check certificates.
SETTINGS = """tls.test.mode.enable=false
tls.server.certPath={cert}
tls.server.keyPath={key}
tls.server.need.client.auth=require
tls.server.trustCertPath={ca}
tls.client.trustCertPath={ca}
tls.client.certPath={cert}
tls.client.keyPath={key}
tls.client.authServer=true
"""


@dataclass(frozen=True)
class Secured:
    """A name server and a broker that speak TLS alone, and want certificates.

    Attributes:
        running: both.
        file: the settings of TLS.
        authority: who signs certificates.
    """

    running: Standalone
    file: Path
    authority: Authority

    @property
    def java_options(self) -> str:
        """For Java's clients."""
        return f"{peer.QUICK_START} -Dtls.enable=true -Dtls.config.file={self.file}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A store behind TLS, with certificates on both sides."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    cert = authority.sign("broker", "127.0.0.1")
    file = directory / "tls.properties"
    file.write_text(SETTINGS.format(cert=cert.cert, key=cert.key, ca=authority.cert))
    settings = (
        f"tls.server.mode=enforcing\ntls.config.file={file}\nmappedFileSizeCommitLog=1048576\nenablePropertyFilter=true\n"
        f"messageDelayLevel={' '.join(f'{second}s' for second in range(1, 19))}\n"
        "transactionTimeOut=2000\ntransactionCheckInterval=3000\n"
    )
    with configured(directory, settings) as running:
        yield Secured(running, file, authority)


@pytest.mark.long
def test_java_s_clients_and_mqadmin_come_in(secured: Secured) -> None:
    options = f"{secured.java_options} -Dgolden.settle.ms=3000 -Dgolden.skip=timed,tx"
    done = peer.run("golden", secured.running.namesrv, "7", str(MESSAGES), java_options=options)
    assert "Exception" not in done
    told = peer.run("mqadmin", "clusterList", "-n", secured.running.namesrv, java_options=secured.java_options)
    assert secured.running.broker in told
    plain = peer.run("mqadmin", "clusterList", "-n", secured.running.namesrv, java_options=peer.QUICK_START)
    assert secured.running.broker not in plain


def test_our_commands_come_in_and_plain_ones_do_not(
    secured: Secured, rmq: Rmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = secured.authority.sign("operator")
    access = ("--namesrv", secured.running.namesrv, "--tls", "--tls-ca", secured.authority.cert)
    lines = tmp_path / "lines"
    lines.write_text("through TLS\n")
    sending = ("produce", lines, "--topic", "Secured", "--timeout", 20)
    for arguments in (access[:2], access):  # plain, and without a certificate
        refused = rmq(*sending, *arguments)
        assert refused.exit_code != 0
        one_line(refused.stderr)
    monkeypatch.setenv("RMQ_TLS_CERT_PATH", str(own.cert))
    monkeypatch.setenv("RMQ_TLS_KEY_PATH", str(own.key))
    sent = rmq(*sending, *access)
    assert sent.exit_code == 0, sent.output
    got = rmq("consume", "--topic", "Secured", "--from", "first", "--limit", 1, "--timeout", 60, *access)
    assert (got.exit_code, got.stdout) == (0, "through TLS\n"), got.output
