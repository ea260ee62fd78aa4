"""``rmq doctor``: how open a server is."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq, one_line
from tests.support.certificates import Authority
from tests.support.processes.broker_processes import standalone

SMALL = "mappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\n"


def states(rmq: Rmq, *arguments: object) -> dict[str, str]:
    done = rmq("doctor", "--security", *arguments, "--json")
    told = json.loads(done.stdout)
    found = {finding["what"]: finding["state"] for finding in told["findings"]}
    assert done.exit_code == int(told["open"]) == int("open" in found.values())
    assert len(found) <= 10
    return found


def test_a_broker_as_it_comes_stands_open_on_its_own_machine(rmq: Rmq, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(SMALL)
    with standalone(tmp_path / "store", "-c", str(tmp_path / "broker.conf"), log=tmp_path / "log") as running:
        found = states(rmq, running.broker)
        wide = "plain connections", "TLS", "requests without a login", "settings", "topics", "consumer groups"
        assert {found[what] for what in (*wide, "consumer offsets")} == {"open"}
        assert found["reach"] == "closed"
        of_names = states(rmq, running.namesrv)
        assert of_names["the cluster's addresses"] == "open"
        text = rmq("doctor", running.broker)
        assert text.exit_code == 1
        assert "authenticationEnabled=true" in text.stdout


def test_one_with_users_and_tls_is_closed(rmq: Rmq, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert = authority.sign("broker", "127.0.0.1")
    tls, conf = tmp_path / "tls.properties", tmp_path / "broker.conf"
    tls.write_text(
        f"tls.server.certPath={cert.cert}\ntls.server.keyPath={cert.key}\ntls.client.trustCertPath={authority.cert}\n"
    )
    user = json.dumps({"username": "admin", "password": "x"})
    conf.write_text(
        f"{SMALL}authenticationEnabled=true\ninitAuthenticationUser={user}\ntls.server.mode=enforcing\n"
        f"tls.config.file={tls}\n"
    )
    with standalone(tmp_path / "store", "-c", str(conf), log=tmp_path / "log") as running:
        found = states(rmq, running.broker, "--tls-ca", authority.cert)
        assert "open" not in found.values()
        assert found["requests without a login"] == found["settings"] == found["plain connections"] == "closed"
        assert states(rmq, running.broker)["TLS"] == "open"  # who asks does not know who signed the certificate


@pytest.mark.parametrize(("address", "words"), [("127.0.0.1:1", "no answer"), ("nowhere", "not an address")])
def test_what_cannot_be_asked_is_told_in_one_line(rmq: Rmq, address: str, words: str) -> None:
    done = rmq("doctor", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in one_line(done.stderr)
