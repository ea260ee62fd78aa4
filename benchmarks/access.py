"""Benchmarks what TLS and signed requests (ACL) cost: our producer at three of our brokers, in turn.

Signing and encryption on the producer's side count, too; both share the processors with the broker.
"""

import json
import statistics
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.client import send
from benchmarks.measure import Figure
from rmq_core.client import Credentials, ProducerOptions, Tls
from tools.processes import standalone

ROUNDS: Final = 12  # short ones in turn: what else the machine does meanwhile meets all three
SECONDS: Final = 2.0
_USER: Final = {"username": "admin", "password": "benchmark"}
_ACL: Final = f"authenticationEnabled=true\nauthorizationEnabled=true\ninitAuthenticationUser={json.dumps(_USER)}\n"


def figures(work: Path) -> list[Figure]:
    """Measure sends by a super user who signs, and sends over TLS, as shares of plain ones."""
    directory = work / "access"
    directory.mkdir()
    cert, key = _certificate(directory)
    settings = directory / "tls.properties"
    settings.write_text(f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n")
    kinds = {
        "plain": ("", ProducerOptions(), None),
        "signed": (_ACL, ProducerOptions(), Credentials(_USER["username"], _USER["password"])),
        "TLS": (
            f"tls.server.mode=permissive\ntls.config.file={settings}\n",
            ProducerOptions(tls=Tls(trust_cert_path=str(cert))),
            None,
        ),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        brokers = {
            kind: stack.enter_context(standalone(directory / kind, conf)) for kind, (conf, _, _) in kinds.items()
        }
        for number in range(ROUNDS + 1):
            for kind, (_, options, credentials) in kinds.items():
                _, per_second = uvloop.run(send(brokers[kind].namesrv, SECONDS, options, credentials))
                if number:  # the first is for warming up
                    rates[kind].append(per_second)
            time.sleep(0.1)
    return [_figure(kind, rates, most) for kind, most in (("signed", 0.9), ("TLS", 0.75))]


def _figure(kind: str, rates: dict[str, list[float]], least: float) -> Figure:
    share = statistics.median(secured / plain for secured, plain in zip(rates[kind], rates["plain"], strict=True))
    rate, plain = statistics.median(rates[kind]), statistics.median(rates["plain"])
    name = f"single sends of 1 KiB, {kind}, of plain ones (median of {ROUNDS})"
    return Figure(name, f"{share:.0%} ({rate:,.0f}/s of {plain:,.0f}/s)", f"{least:.0%}", share >= least)


def _certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine, and its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    arguments = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key} -out {cert}"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(["openssl", *arguments.split(), *names], check=True, capture_output=True)
    return cert, key
