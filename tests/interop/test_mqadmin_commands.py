"""Each command of mqadmin at our broker and name server: it works, or is refused with a reason, as docs/admin.md says.

The broker knows its users, so that those who administer them are commands like others.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Final

import pytest

from tests.cli.admin.test_groups import client
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES
from tests.interop.test_users_against_java import SETTINGS as WITH_USERS
from tests.support.processes.broker_processes import PATIENT, Standalone, standalone

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("mqadmin_commands")]

VERSION: Final = os.environ.get("PEER_VERSION", "5.3.3")
PAGE: Final = Path(__file__).parents[2] / "docs" / "admin.md"
_SETTINGS: Final = (
    WITH_USERS.removeprefix(SMALL_FILES)
    + SMALL_FILES
    + "traceTopicEnable=true\nenableLmq=true\nenableMultiDispatch=true\n"
)
IS_NEWER: Final = VERSION != "5.3.3"
_TIMEOUT_S: Final = 300
_PATIENT: Final = {"producer", "producerConnection", "consumerConnection", "queryMsgTraceById", "brokerConsumeStats"}

# What is asked, and what has to be in the answer. An id in {braces} is a group of an earlier expression.
MAKING: Final = (
    ("updateTopic -b {broker} -t T -r 2 -w 2", "create topic to .* success"),
    ("updateTopicList -b {broker} -f {dir}/topics.json", "success"),
    ("updateTopicPerm -b {broker} -t L1 -p 4", "update topic perm from 6 to 4 .* success"),
    ("updateOrderConf -t T -m put -v broker-a:2", "update orderConf success"),
    ("updateSubGroup -b {broker} -g g", "create subscription group to .* success"),
    ("updateSubGroupList -b {broker} -f {dir}/groups.json", "success"),
    ("setConsumeMode -b {broker} -t T -g lg1 -m POP -q 0", "set consume mode to .* success"),
)
WORKING: Final = (
    ("sendMessage -t T -p hello -k k1 -b broker-a -i 0 -m true", "SEND_OK +(?P<uniq>[0-9A-F]+)"),
    ("printMsgByQueue -t T -a broker-a -i 0 -p true -d true", "msgId=(?P<id>[0-9A-F]+), .* BODY: hello"),
    ("printMsg -t T -d true", "BODY: hello"),
    ("consumeMessage -t T -b broker-a -i 0 -o 0 -c 1", "Consume ok"),
    ("queryMsgById -t T -i {id}", "{uniq}"),
    ("queryMsgByKey -t T -k k1", "{uniq}"),
    ("queryMsgByUniqueKey -t T -i {uniq}", "{uniq}"),
    ("queryMsgByOffset -t T -b broker-a -i 0 -o 0", "{uniq}"),
    ("queryMsgTraceById -i {uniq}", "Pub"),
    ("queryCq -t T -q 0 -i 0 -c 5 -b {broker} -g g", r"max: \d+, min: 0(.|\n)*physicOffset=\d+, physicSize="),
    ("sendMsgStatus -b broker-a -c 2", "SEND_OK"),
    ("checkMsgSendRT -t T -a 2 -s 10", "Avg RT: "),
    ("topicList", "^T$"),
    ("topicRoute -t T", '"brokerName": ?"broker-a"'),
    ("topicStatus -t T", r"broker-a +0 +0 +\d+ "),
    ("topicClusterList -t T", "InteropCluster"),
    ("statsAll -t T", "^T "),
    ("allocateMQ -t T -i 127.0.0.1@1,127.0.0.1@2", '"127.0.0.1@2":'),
    ("clusterList", "broker-a +0 +{broker}"),
    ("brokerStatus -b {broker}", "putTps"),
    ("getBrokerConfig -b {broker}", "brokerName +=  broker-a"),
    ("updateBrokerConfig -b {broker} -k transactionCheckMax -v 14", "update broker config success"),
    ("haStatus -b {broker}", "#SlaveNum\t0"),
    ("resetMasterFlushOffset -b {broker} -o 0", "success"),
    ("producer -b {broker}", r"producer group \(members\)"),
    ("producerConnection -g members -t T", "PYTHON"),
    ("consumerConnection -g members", r"^(?P<client>\S+@\S+) .*PYTHON"),
    ("consumerStatus -g members -i {client}", "PROP_CONSUMER_START_TIMESTAMP"),
    ("consumerProgress -g members", "^T +broker-a +0 "),
    ("brokerConsumeStats -b {broker}", "^T +members "),
    ("getConsumerConfig -g members", "groupName +=  members"),
    ("cloneGroupOffset -s members -d lg2 -t T -o true", "clone group offset success"),
    ("resetOffsetByTime -g members -t T -s 0", "broker-a"),
    ("skipAccumulatedMessage -g members -t T -f true", "broker-a"),
    ("exportMetadata -c InteropCluster -f {dir}", "metadata.json success"),
    ("exportConfigs -c InteropCluster -f {dir}", "configs.json success"),
    ("exportMetrics -c InteropCluster -f {dir}", "metrics.json success"),
    ("getNamesrvConfig", "orderMessageEnable +=  true"),
    ("updateNamesrvConfig -k orderMessageEnable -v true", "update name server config success"),
    ("updateKvConfig -s ns -k k -v v", "create or update kv config to namespace success"),
    ("deleteKvConfig -s ns -k k", "delete kv config from namespace success"),
    ("wipeWritePerm -b broker-a", r"OK, \d+"),
    ("addWritePerm -b broker-a", r"OK, \d+"),
    ("cleanExpiredCQ -b {broker}", "success"),
    ("deleteExpiredCommitLog -b {broker}", "success"),
    ("cleanUnusedTopic -b {broker}", "success"),
    ("createUser -b {broker} -u alice -p alice1234", "success"),
    ("updateUser -b {broker} -u alice -p alice12345", "success"),
    ("getUser -b {broker} -u alice", "alice12345"),
    ("listUser -b {broker}", "alice"),
    ("createAcl -b {broker} -s User:alice -r Topic:T -a Pub -d Allow", "success"),
    ("updateAcl -b {broker} -s User:alice -r Topic:T -a Sub -d Allow", "success"),
    ("getAcl -b {broker} -s User:alice", "Topic:T"),
    ("listAcl -b {broker}", "User:alice"),
    ("copyUser -f {broker} -t {other} -u alice", "success"),
    ("copyAcl -f {broker} -t {other} -s User:alice", "success"),
    ("deleteAcl -b {broker} -s User:alice -r Topic:T", "success"),
    ("deleteUser -b {broker} -u alice", "success"),
    ("deleteSubGroup -b {broker} -g lg1", "success"),
    ("deleteTopic -c InteropCluster -t L1", "success"),
)
ENDLESS: Final = (("clusterRT -c InteropCluster -a 1 -s 10 -i 1", "InteropCluster"), ("startMonitoring", ""))
REFUSED: Final = (
    ("addBroker -c {broker} -b none.conf", "no container here"),
    ("removeBroker -c {broker} -b InteropCluster:broker-a:0", "no container here"),
    ("getSyncStateSet -a {namesrv} -b broker-a", "no controller here"),
    ("getBrokerEpoch -b broker-a", "no controller here"),
    ("getControllerMetaData -a {namesrv}", "no controller here"),
    ("getControllerConfig -a {namesrv}", "no controller here"),
    ("updateControllerConfig -a {namesrv} -k k -v v", "no controller here"),
    ("electMaster -a {namesrv} -b 0 -bn broker-a -c InteropCluster", "no controller here"),
    ("cleanBrokerMetadata -a {namesrv} -bn broker-a -c InteropCluster", "no controller here"),
    ("getColdDataFlowCtrInfo -b {broker}", "not limited by group here"),
    ("updateColdDataFlowCtrGroupConfig -b {broker} -g g -v 1000", "not limited by group here"),
    ("removeColdDataFlowCtrGroupConfig -b {broker} -g g", "not limited by group here"),
    ("setCommitLogReadAheadMode -b {broker} -m 0", "left to the system"),
    ("updateStaticTopic -t St -qn 2 -c InteropCluster", "static topics are not kept here"),
    ("remappingStaticTopic -t TBW102 -c InteropCluster", "Mapping info should not be null in broker broker-a"),
    ("exportPopRecord -b {broker} -d true", "in files here, not in RocksDB"),
    ("checkRocksdbCqWriteProgress -c InteropCluster", "in files here, not in RocksDB"),
    ("rocksDBConfigToJson -c InteropCluster -t topics", "in files here, not in RocksDB"),
)
LOCAL: Final = (
    ("dumpCompactionLog -f {dir}/none", "none not exist"),
    ("exportMetadataInRocksDB -p {dir}/none -t topics", "RocksDB path is invalid"),
)
LITE: Final = (  # of 5.5
    ("updateTopic -b {broker} -t Lt -a +message.type=LITE,+lite.topic.expiration=30", "create topic to .* success"),
    ("updateSubGroup -b {broker} -g ltg --attributes +lite.bind.topic=Lt", "create subscription group to .* success"),
    ("getBrokerLiteInfo -b {broker} -d", r"Lt(.|\n)*ltg"),
    ("getParentTopicInfo -p Lt", r"broker-a +30 +0 +0 +\[?ltg"),
    ("getLiteTopicInfo -p Lt -l l1", r"broker-a +0 +0 "),
    ("getLiteClientInfo -p Lt -g ltg -c c1", "broker-a +N/A"),
    ("getLiteGroupInfo -p Lt -g ltg", "Total Lag Count: 0"),
    ("triggerLiteDispatch -p Lt -g ltg", "broker-a"),
)
REFUSED_551: Final = (("switchTimerEngine -b {broker} -e F", "in a wheel of files here"),)


def name(command: str) -> str:
    """The first word."""
    return command.split(maxsplit=1)[0]


class Administered:
    """Two guarded brokers of ours, and mqadmin in one process."""

    def __init__(self, running: Standalone, other: Standalone, directory: Path) -> None:
        self.running = running
        self.places = {"broker": running.broker, "namesrv": running.namesrv, "other": other.broker, "dir": directory}
        self._directory = directory

    @property
    def java_options(self) -> str:
        """Of a process that signs as the administrator."""
        return f"-Drocketmq.home.dir={self._directory}"

    def words(self, command: str) -> list[str]:
        """A command with the name server, where it takes one that it needs."""
        words = command.format(**self.places).split()
        return words if "-n" in words else [words[0], "-n", self.running.namesrv, *words[1:]]

    def answer(self, command: str) -> str:
        """What it prints."""
        return peer.command(*self.words(command), java_options=self.java_options)

    def must_answer(self, command: str, wanted: str) -> None:
        """Run a command, look for an expression in its answer, and keep what its named groups have found."""
        until = time.monotonic() + (60 if name(command) in _PATIENT else 0)  # for members to come, traces to be sent
        while True:
            said = self.answer(command)
            found = re.search(wanted.format(**self.places), said, re.MULTILINE)
            if found or time.monotonic() >= until:
                break
        assert found, f"{command}:\n{said[-3000:]}"
        self.places |= {key: text for key, text in found.groupdict().items() if text}


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    directory = tmp_path_factory.mktemp("mqadmin")
    (directory / "conf").mkdir()
    (directory / "conf" / "tools.yml").write_text("accessKey: admin\nsecretKey: admin1234\n")
    (directory / "conf" / "tools.yml").chmod(0o600)
    (directory / "broker.conf").write_text(PATIENT + _SETTINGS)
    topics = [{"topicName": "L1", "readQueueNums": 1, "writeQueueNums": 1}]
    (directory / "topics.json").write_text(json.dumps(topics))
    (directory / "groups.json").write_text(json.dumps([{"groupName": one} for one in ("lg1", "lg2", "members")]))
    with ExitStack() as stack:
        running, other = (
            stack.enter_context(
                standalone(directory / one, "-c", str(directory / "broker.conf"), log=directory / f"{one}.log")
            )
            for one in ("first", "second")
        )
        yield Administered(running, other, directory)


@pytest.mark.long
def test_the_commands_that_are_said_to_work_do(administered: Administered) -> None:
    for command, wanted in MAKING:
        administered.must_answer(command, wanted)
    credentials = "--credentials", f"{administered.places['dir']}/conf/tools.yml"
    place = "--namesrv", administered.running.namesrv, "--topic", "T", "--group", "members", *credentials
    with client("consume", *place, "--from", "first"), client("produce", *place):
        for command, wanted in (*WORKING, *(LITE if IS_NEWER else ())):
            administered.must_answer(command, wanted)


def test_the_commands_that_do_not_end_begin(administered: Administered) -> None:
    environment = {**os.environ, "PEER_JAVA_OPTS": f"{peer.QUICK_START} {administered.java_options}"}
    command = ["bash", str(peer.SCRIPT), "mqadmin", *administered.words("clusterRT -c InteropCluster -a 1 -s 10 -i 1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        patience = Timer(_TIMEOUT_S, process.kill)
        patience.start()
        try:
            assert process.stdout is not None
            assert any(re.match("InteropCluster +broker-a +", line) for line in process.stdout)
        finally:
            patience.cancel()
            process.kill()
    assert "Exception" not in administered.answer("startMonitoring")


@pytest.mark.parametrize(("command", "reason"), [*REFUSED, *LOCAL, *(REFUSED_551 if IS_NEWER else ())])
def test_others_are_refused_with_a_reason(administered: Administered, command: str, reason: str) -> None:
    said = administered.answer(command)
    assert re.search(reason, said), said[-3000:]


def test_the_page_has_each_command_as_it_is() -> None:
    listed = set(re.findall("^   ([a-zA-Z]+) ", peer.command(""), re.MULTILINE))
    works = {name(command) for command, _ in (*MAKING, *WORKING, *ENDLESS)}
    refused = {name(command) for command, _ in REFUSED}
    of_551 = {name(command) for command, _ in REFUSED_551}
    lite = {name(command) for command, _ in LITE} - works
    local = {name(command) for command, _ in LOCAL}
    assert listed == works | refused | local | (of_551 | lite if IS_NEWER else set())
    page = PAGE.read_text().partition("## mqadmin itself\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (?:not there \| )?(works|refused|reads)", page, re.MULTILINE)
    told = {one: kind for names, kind in rows for one in re.findall("`([a-zA-Z]+)`", names)}
    assert told == {
        **dict.fromkeys(works | lite, "works"), **dict.fromkeys(refused | of_551, "refused"),
        **dict.fromkeys(local, "reads"),
    }  # fmt: skip
