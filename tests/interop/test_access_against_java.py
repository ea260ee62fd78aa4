"""Credentials and TLS with ACL 2.0 on and certificates of our own: at Java's name server and broker, and at ours."""

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from rmq_cli.main import app
from rmq_core.client import (
    Admin,
    BrokerError,
    ClientOptions,
    Credentials,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendFailedError,
    SendStatus,
    StartPosition,
    Tls,
    TransactionProducer,
    TransactionState,
)
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import JSON, ROCKETMQ
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import request
from rmq_core.remoting.loop import run
from rmq_formats.errors import ClusterError
from tests.cli.conftest import one_line
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, free_port, java
from tests.jobs.replayed_messages import expected_messages, replay_store
from tests.spark.live.scenarios import fresh, run_stream
from tests.support.certificates import Authority
from tests.support.processes.broker_processes import standalone

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.xdist_group("spark")]

SECRET, WRONG, TOKEN = "s3cret-of-admin", "wr0ng-of-nobody", "t0ken-of-admin"
ADMIN = Credentials("admin", SECRET, TOKEN)
ALICE = Credentials("alice", "s3cret-of-alice")  # a user who may do nothing
REFUSED = {
    "username cannot be null.": None,
    "check signature failed.": Credentials("admin", WRONG),
    "User:nobody is not found.": Credentials("nobody", SECRET),
}
PATIENT, SENDING = ClientOptions(request_timeout_s=60), ProducerOptions(send_timeout_s=60)  # machines may be busy
BAD_SIGNATURE = "code 16: check signature failed"
SETTINGS = f"""
brokerName=acl-java
enablePropertyFilter=true
transactionTimeOut=1000
transactionCheckInterval=1000
authenticationEnabled=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authorizationEnabled=true
authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
initAuthenticationUser={{"username":"admin","password":"{SECRET}"}}
innerClientAuthenticationCredentials={{"accessKey":"inner","secretKey":"s3cret-of-brokers"}}
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that knows its users.

    Attributes:
        namesrv: the name server's address.
        broker: the broker's.
        ca: PEM of who has signed their certificates.
        credentials: a file with those of the administrator.
    """

    namesrv: str
    broker: str
    ca: str
    credentials: str

    @property
    def tls(self) -> Tls:
        """TLS that trusts its servers."""
        return Tls(trust_cert_path=self.ca)


@pytest.fixture(scope="module", params=["java", "ours"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a broker, Java's or ours; they speak plain and TLS."""
    peer.build()
    directory = tmp_path_factory.mktemp("acl")
    authority = Authority(directory)
    cert = authority.sign("broker", "127.0.0.1")
    options = f"-Dtls.test.mode.enable=false -Dtls.server.certPath={cert.cert} -Dtls.server.keyPath={cert.key}"
    names_port, port = free_port(), free_port()
    conf, credentials = directory / "broker.conf", directory / "tools.yml"
    conf.write_text(
        f"{SMALL_FILES}{SETTINGS}namesrvAddr=127.0.0.1:{names_port}\nlistenPort={port}\nhaListenPort={free_port()}\n"
    )
    credentials.touch(0o600)
    credentials.write_text(f"accessKey: admin\nsecretKey: {SECRET}\nsecurityToken: {TOKEN}\n")
    found = Cluster(f"127.0.0.1:{names_port}", f"127.0.0.1:{port}", str(authority.cert), str(credentials))
    if request.param == "ours":
        tls = directory / "tls.properties"
        tls.write_text(f"tls.test.mode.enable=false\ntls.server.certPath={cert.cert}\ntls.server.keyPath={cert.key}\n")
        conf.write_text(f"{SMALL_FILES}{SETTINGS}tls.server.mode=permissive\ntls.config.file={tls}\n")
        with standalone(directory / "store", "-c", str(conf), log=directory / "log") as running:
            found = replace(found, namesrv=running.namesrv, broker=running.broker)
            run(_until_there(found))
            yield found
        assert not [word for word in (SECRET, ALICE.secret_key) if word in (directory / "log").read_text()]
        return
    with ExitStack() as stack:
        stack.enter_context(peer.running(peer.version_with_users()))
        log = stack.enter_context((directory / "java.log").open("wb"))
        stack.enter_context(java(log, "namesrv", str(names_port), options=options))
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf), options=options))
        run(_until_there(found))
        yield found


async def _until_there(cluster: Cluster) -> None:
    async with asyncio.timeout(180), Admin(cluster.namesrv, PATIENT, credentials=ADMIN) as admin:
        while True:
            try:
                if await admin.masters() and "TBW102" in await admin.topics():
                    break
            except Exception:
                await asyncio.sleep(0.2)
    user = json.dumps({"username": "alice", "password": ALICE.secret_key, "userType": "Normal"}).encode()
    async with RemotingClient(credentials=ADMIN) as client:  # AUTH_CREATE_USER
        assert (await client.invoke(cluster.broker, request(3001, {"username": "alice"}, user), 30)).code == 0


def make_topic(cluster: Cluster, topic: str, queues: int = 2) -> str:
    async def main() -> None:
        async with Admin(cluster.namesrv, PATIENT, credentials=ADMIN) as admin:
            await admin.create_topic(topic, queues=queues)
            async with asyncio.timeout(60):
                while topic not in await admin.topics():
                    await asyncio.sleep(0.05)

    run(main())
    return topic


class Seen:
    """A listener that keeps bodies."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        self.bodies |= {message.body for message in messages}

    async def until(self, wanted: set[bytes]) -> None:
        async with asyncio.timeout(60):
            while not self.bodies >= wanted:
                await asyncio.sleep(0.05)


def outcome(message: ReceivedMessage) -> TransactionState:
    """What became of a transaction: brokers ask of ended ones, too."""
    return TransactionState.ROLLBACK if message.body == b"rolled back" else TransactionState.COMMIT


async def check_clients(cluster: Cluster, topic: str, tls: Tls | None) -> None:
    """Send in all ways, and consume in both."""
    producing = ProducerOptions(send_timeout_s=60, tls=tls)
    async with Producer(cluster.namesrv, "acl", producing, credentials=ADMIN) as producer:
        single = await producer.send(Message(topic, b"single", keys="k1", properties={"ä": "\U0001f511"}))
        batch = await producer.send_batch([Message(topic, b"batch-1"), Message(topic, b"batch-2")])
        await producer.send_oneway(Message(topic, b"oneway"))
        large = await producer.send(Message(topic, b"large " * 20_000))
        assert {one.status for one in (single, batch, large)} == {SendStatus.SEND_OK}
        states = iter([TransactionState.COMMIT, TransactionState.UNKNOWN, TransactionState.ROLLBACK])
        transactional = TransactionProducer(cluster.namesrv, fresh("acl-tx"), outcome, producing, credentials=ADMIN)
        async with transactional:
            for body in (b"committed", b"checked", b"rolled back"):
                ended = await transactional.send_in_transaction(Message(topic, body), lambda *_: next(states))
                assert ended.is_ended
            sent = {b"single", b"batch-1", b"batch-2", b"oneway", b"large " * 20_000, b"committed", b"checked"}
            seen = Seen()
            pushing = PushOptions(start=StartPosition.FIRST, tls=tls, enable_trace=True, request_timeout_s=60)
            push = PushConsumer(cluster.namesrv, fresh("acl-push"), seen, pushing, credentials=ADMIN)
            push.subscribe(topic)
            async with push:
                await seen.until(sent)
    pulling = PullOptions(start=StartPosition.FIRST, tls=tls, request_timeout_s=60)
    async with PullConsumer(cluster.namesrv, fresh("acl-pull"), pulling, credentials=ADMIN) as pull:
        pull.assign(await pull.queues(topic))
        await pull.seek_to_begin()
        pulled: set[bytes] = set()
        async with asyncio.timeout(60):
            while not pulled >= sent:
                pulled |= {message.body for message in await pull.poll(1)}
        await pull.commit()
    options = ClientOptions(request_timeout_s=60, tls=tls)
    async with Admin(cluster.namesrv, options, credentials=ADMIN) as admin:
        # More than once where the broker asks again before it has heard the answer to its check.
        assert sum(high for _, high in (await admin.topic_stats(topic)).values()) >= len(sent)
        assert [one.body for one in await admin.query_by_key(topic, "k1")] == [b"single"]
        assert [one.body for one in await admin.query_by_uniq_key(topic, single.msg_id)] == [b"single"]
        assert (await admin.view_message(single.offset_msg_id)).body == b"single"
        assert pulled == seen.bodies == sent


def test_each_client_is_let_in(cluster: Cluster) -> None:
    run(check_clients(cluster, make_topic(cluster, fresh("Acl")), None))


def test_each_client_speaks_tls(cluster: Cluster) -> None:
    run(check_clients(cluster, make_topic(cluster, fresh("Tls")), cluster.tls))


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@pytest.mark.parametrize("token", [None, "", TOKEN])
def test_signatures_hold_in_both_headers(cluster: Cluster, serialize_type: int, token: str | None) -> None:
    """Empty fields of a binary header come to Java as null, and it would sign the word."""
    fields = {"topic": "TBW102", "queueId": "0", "empty": "", "ä": "\U0001f511", "￿": "last", "\U0001f511": "x"}

    async def main() -> None:
        async with RemotingClient(credentials=Credentials("admin", SECRET, token)) as client:
            command = request(30, fields, bytes(range(256)), serialize_type=serialize_type)
            answer = await client.invoke(cluster.broker, command, 30)
            assert (answer.code, answer.remark) == (0, None)

    run(main())


@pytest.mark.parametrize("remark", REFUSED)
def test_who_is_not_let_in_is_told_so_at_once(cluster: Cluster, remark: str) -> None:
    topic, credentials = make_topic(cluster, fresh("Refused")), REFUSED[remark]

    async def main() -> None:
        async with Producer(cluster.namesrv, "acl", SENDING, credentials=credentials) as producer:
            with pytest.raises(SendFailedError) as failed:
                await producer.send(Message(topic, b"x"))
        async with TransactionProducer(
            cluster.namesrv, "acl-tx", lambda _: TransactionState.COMMIT, SENDING, credentials=credentials
        ) as producer:
            with pytest.raises(SendFailedError) as half:
                await producer.send_in_transaction(Message(topic, b"x"), lambda *_: pytest.fail("nothing was sent"))
        push = PushConsumer(
            cluster.namesrv, "acl-push", Seen(), PushOptions(request_timeout_s=60), credentials=credentials
        )
        push.subscribe(topic)
        with pytest.raises(BrokerError) as joining:
            await push.start()
        pull = PullConsumer(cluster.namesrv, "acl-pull", PullOptions(request_timeout_s=60), credentials=credentials)
        pull.subscribe(topic)
        with pytest.raises(BrokerError) as pulling:
            await pull.start()
        async with PullConsumer(
            cluster.namesrv, "acl-pull", PullOptions(request_timeout_s=60), credentials=credentials
        ) as assigned:
            assigned.assign(await assigned.queues(topic))
            with pytest.raises(BrokerError) as polling:
                await assigned.poll(60)
        async with Admin(cluster.namesrv, PATIENT, credentials=credentials) as admin:
            with pytest.raises(BrokerError) as asking:
                await admin.topic_stats(topic)
        for one in (failed, half, joining, pulling, polling, asking):
            assert one.value.code == 16
            assert one.value.remark.endswith(remark)
        async with Admin(cluster.namesrv, PATIENT, credentials=ADMIN) as admin:
            assert {high for _, high in (await admin.topic_stats(topic)).values()} == {0}

    run(main())


def test_who_may_not_is_told_which_topic_and_group(cluster: Cluster) -> None:
    topic = make_topic(cluster, fresh("Forbidden"))

    async def main() -> None:
        async with Producer(cluster.namesrv, "acl", SENDING, credentials=ALICE) as producer:
            with pytest.raises(SendFailedError, match=rf"code 16: .*User:alice has no permission to .*Topic:{topic}"):
                await producer.send(Message(topic, b"x"))
        push = PushConsumer(cluster.namesrv, "acl-push", Seen(), PushOptions(request_timeout_s=60), credentials=ALICE)
        push.subscribe(topic)
        with pytest.raises(BrokerError, match="code 16: User:alice has no permission to access Group:acl-push"):
            await push.start()

    run(main())


def rmq(*arguments: str, lines: str = "", **environ: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", **environ}).invoke(app, list(arguments), input=lines)


def test_commands_take_credentials_from_files_and_variables(cluster: Cluster, tmp_path: Path) -> None:
    topic, secret = make_topic(cluster, fresh("Lines")), tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"{SECRET}\n")
    lines = tmp_path / "lines"
    lines.write_text("first\nsecond\n")
    at = "--namesrv", cluster.namesrv
    by_name = "--access-key", "admin", "--secret-key-file", str(secret)
    by_environ = {"RMQ_ACCESS_KEY": "admin", "RMQ_SECRET_KEY": SECRET}
    over_tls = "--tls", "--tls-ca", cluster.ca
    sending = "produce", str(lines), *at, "--topic", topic, "--timeout", "60"
    done = rmq(*sending, "--credentials", cluster.credentials, *over_tls)
    assert (done.exit_code, done.stderr) == (0, "2 messages sent\n")
    done = rmq("consume", *at, "--topic", topic, "--from", "first", "--limit", "2", *by_name)
    assert (done.exit_code, sorted(done.stdout.split())) == (0, ["first", "second"])
    group = "--group", fresh("lines"), "--from", "first", "--limit", "2"
    done = rmq("consume", *at, "--topic", topic, *group, **by_environ, RMQ_USE_TLS="true", RMQ_TLS_AUTH_SERVER="false")
    assert (done.exit_code, sorted(done.stdout.split())) == (0, ["first", "second"])
    done = rmq("admin", "topicStatus", *at, "-t", topic, "--json", RMQ_CREDENTIALS_FILE=cluster.credentials)
    assert sum(json.loads(line)["max_offset"] for line in done.stdout.splitlines()) == 2
    done = rmq("admin", "sendMessage", *at, "-t", topic, "-p", "third", "--json", *by_name, *over_tls)
    assert json.loads(done.stdout)["status"] == "SEND_OK"


@pytest.mark.long
def test_commands_that_are_not_let_in_say_so_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    topic, lines = make_topic(cluster, fresh("Lines")), tmp_path / "lines"
    lines.write_text("first\n" * 50)
    of_topic = "--namesrv", cluster.namesrv, "--topic", topic
    commands = [
        ["produce", str(lines), *of_topic, "--timeout", "60"],
        ["consume", *of_topic, "--from", "first"],
        ["consume", *of_topic, "--group", "lines"],
        ["admin", "topicStatus", *of_topic],
        ["admin", "sendMessage", *of_topic, "-p", "x"],
    ]
    for environ, remark in (
        ({}, "username cannot be null."),
        ({"RMQ_ACCESS_KEY": "admin", "RMQ_SECRET_KEY": WRONG}, "check signature failed."),
    ):
        for command in commands:
            done = rmq(*command, **environ)
            said = one_line(done.stderr)
            assert (done.exit_code, done.stdout) == (2, ""), command
            assert "code 16: " in said
            assert remark in said
            assert WRONG not in said
    for command in commands:
        done = rmq(*command, "--tls")
        assert done.exit_code == 2
        assert "the server's certificate is not trusted: " in one_line(done.stderr), command

    async def count() -> set[int]:
        async with Admin(cluster.namesrv, PATIENT, credentials=ADMIN) as admin:
            return {high for _, high in (await admin.topic_stats(topic)).values()}

    assert run(count()) == {0}


def test_what_stands_open_is_told(cluster: Cluster) -> None:
    done = rmq("doctor", "--security", cluster.broker, "--tls-ca", cluster.ca, "--json")
    found = {one["what"]: one["state"] for one in json.loads(done.stdout)["findings"]}
    assert (done.exit_code, found["plain connections"], found["TLS"]) == (1, "open", "closed")
    assert {found[what] for what in ("requests without a login", "settings", "topics", "consumer groups")} == {"closed"}


def test_a_client_without_the_authority_is_not_connected(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.namesrv, ClientOptions(request_timeout_s=60, tls=Tls()), credentials=ADMIN) as admin:
            with pytest.raises(TransportError, match="certificate is not trusted: unable to get local issuer"):
                await admin.topics()

    run(main())


def test_a_replay_is_let_in_or_refused_before_it_sends(cluster: Cluster, golden: Callable[[str], Path]) -> None:
    directory, topic = golden("mixed"), make_topic(cluster, fresh("Replayed"))
    first = sorted(expected_messages(directory))[0][0]
    chosen = "--topics", first, "--to-topic", topic
    for more in ((), ("--access-key", "admin", "--secret-key-file", cluster.credentials)):
        with pytest.raises(ClusterError, match="code 16: "):
            replay_store(directory / "store", cluster.namesrv, *chosen, *more)
    report, code = replay_store(
        directory / "store",
        cluster.namesrv,
        *chosen,
        "--credentials",
        cluster.credentials,
        "--tls",
        "--tls-ca",
        cluster.ca,
    )
    assert (code, report["messages"] > 0) == (0, True)
    assert SECRET not in json.dumps(report)


class EventLog:
    """Spark's event log, which the history server shows, of what happens while it is open."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        jvm: Any = spark._jvm
        self._context = spark.sparkContext._jsc.sc()
        self._directory = directory
        conf = self._context.conf().clone().set("spark.eventLog.compress", "false")
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        writer = jvm.org.apache.spark.scheduler.EventLoggingListener
        self._writer = writer("app", jvm.scala.Option.empty(), jvm.java.net.URI(directory.as_uri()), conf, hadoop)

    def __enter__(self) -> "EventLog":
        self._writer.start()
        self._context.addSparkListener(self._writer)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.listenerBus().waitUntilEmpty()
        self._context.removeSparkListener(self._writer)
        self._writer.stop()


def texts_in(directory: Path) -> str:
    """All files below a directory."""
    return "\n".join(file.read_text(errors="replace") for file in sorted(directory.rglob("*")) if file.is_file())


@pytest.mark.long
def test_the_source_and_the_sink_are_let_in_and_show_no_secret(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic, copy = make_topic(cluster, fresh("Spark")), make_topic(cluster, fresh("Copy"))
    given = {"namesrv": cluster.namesrv, "accessKey": "admin", "secretKey": SECRET, "securityToken": TOKEN}
    of_file = {
        "namesrv": cluster.namesrv, "credentialsFile": cluster.credentials, "useTLS": "true",
        "tls.client.trustCertPath": cluster.ca,
    }  # fmt: skip
    (tmp_path / "events").mkdir()
    shown = io.StringIO()
    with EventLog(spark, tmp_path / "events"), contextlib.redirect_stdout(shown):
        rows = spark.createDataFrame([(f"{number}",) for number in range(20)], "body string")
        rows.write.format("rmq").mode("append").options(**given).option("topic", topic).save()
        stream = spark.readStream.format("rmq").options(**given).option("subscribe", topic).load()
        run_stream(stream, tmp_path / "checkpoint", **of_file, topic=copy)
        for options in (given, of_file):
            read = spark.read.format("rmq").options(**options).option("subscribe", copy).load()
            assert sorted(int(row.body) for row in read.select("body").collect()) == list(range(20))
            read.filter("tags IS NULL").explain(True)
            tables = {name: spark.read.format(name).options(**options) for name in ("rmq_topics", "rmq_offsets")}
            assert [row.topic for row in tables["rmq_topics"].option("subscribe", copy).load().collect()] == [copy]
            assert tables["rmq_offsets"].option("group", "nobody").load().collect() == []
            shown.write(f"{read!r} {stream!r} {read._jdf.queryExecution().toString()}")
        view = ", ".join(f"{name} '{value}'" for name, value in given.items())
        spark.sql(f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW v USING rmq OPTIONS ({view}, subscribe '{topic}')").show(
            truncate=False
        )
        wrong = given | {"secretKey": WRONG}
        with pytest.raises(Exception, match=BAD_SIGNATURE) as reading:
            spark.read.format("rmq").options(**wrong).option("subscribe", topic).load().count()
        with pytest.raises(Exception, match=BAD_SIGNATURE):
            spark.read.format("rmq_offsets").options(**wrong).load().count()
        with pytest.raises(Exception, match=BAD_SIGNATURE) as writing:
            rows.write.format("rmq").mode("append").options(**wrong).option("topic", topic).save()
        shown.write("".join(f"{one.value!s} {one.value.__cause__!r}" for one in (reading, writing)))
    printed = capfd.readouterr()
    for place in (shown.getvalue(), printed.out, printed.err, texts_in(tmp_path)):
        for secret in (SECRET, TOKEN, WRONG):
            assert secret not in place
    events = texts_in(tmp_path / "events")
    assert "SparkListenerSQLExecutionStart" in events
    assert "QueryProgressEvent" in events
    assert "secretKey -> *********(redacted)" in shown.getvalue()


@pytest.mark.long
def test_a_query_that_is_not_let_in_fails_before_a_task_runs(spark: SparkSession, cluster: Cluster) -> None:
    topic = make_topic(cluster, fresh("Spark"))
    rows = spark.createDataFrame([("x", topic)], "body string, topic string")
    at = {"namesrv": cluster.namesrv}
    tls = {"useTLS": "true", **at}
    for told, options in {"code 16: username cannot be null": at, "certificate is not trusted: ": tls}.items():
        with pytest.raises(Exception, match=told):
            spark.read.format("rmq").options(**options).option("subscribe", topic).load().count()
        with pytest.raises(Exception, match=told):
            rows.write.format("rmq").mode("append").options(**options).save()
    with pytest.raises(Exception, match="accessKey requires secretKey: without both, requests cannot be signed"):
        spark.read.format("rmq").options(**at, accessKey="a").option("subscribe", topic).load().count()
