"""``docs/admin.md`` has what there is."""

import re
from pathlib import Path

import typer.main

from rmq_cli.admin.app import COMMANDS, app

PAGE = Path(__file__).parents[3] / "docs" / "admin.md"
METRICS = Path(__file__).parents[3] / "rmq_core" / "broker" / "metrics"


# Letters of the options of 5.3.3: tools/src/main/java/org/apache/rocketmq/tools/command/**
MQADMIN = {
    "clusterList": "mic", "topicList": "c", "topicRoute": "tl", "topicStatus": "tc", "updateTopic": "bcatrwpous",
    "deleteTopic": "tc", "updateSubGroup": "bcgsmdoqrpiwa", "deleteSubGroup": "bcgr", "consumerProgress": "gtsc",
    "consumerConnection": "gb", "producerConnection": "gt", "brokerStatus": "bc", "getBrokerConfig": "bc",
    "queryMsgById": "tigdsfc", "queryMsgByKey": "tkbemc", "queryMsgByUniqueKey": "igdtac",
    "queryMsgByOffset": "tbiof", "printMsg": "tcsbed", "sendMessage": "tpkcbim", "consumeMessage": "tbiogsec",
    "resetOffsetByTime": "gtsfbqoc", "skipAccumulatedMessage": "gtfc", "cloneGroupOffset": "sdto", "statsAll": "at",
    "brokerConsumeStats": "btlo", "exportMetadata": "cbftgs",
    "getBrokerLiteInfo": "bcd", "getParentTopicInfo": "p", "getLiteTopicInfo": "pls", "getLiteClientInfo": "pgcs",
    "getLiteGroupInfo": "pglk", "triggerLiteDispatch": "pgcb",  # these are of 5.5
    "createUser": "bcupt", "updateUser": "bcupts", "deleteUser": "bcu", "getUser": "bcu", "listUser": "bcf",
    "copyUser": "ftu", "createAcl": "bcsradi", "updateAcl": "bcsradi", "deleteAcl": "bcsr", "getAcl": "bcs",
    "listAcl": "bcsr", "copyAcl": "fts",
}  # fmt: skip
LEFT_OUT = {"queryMsgById": ["-u"], "printMsg": ["-l"]}


def test_each_option_of_mqadmin_is_there() -> None:
    commands = typer.main.get_group(app).commands
    assert MQADMIN.keys() == commands.keys()
    for name, letters in MQADMIN.items():
        options = {option for one in commands[name].params for option in one.opts if len(option) == 2}
        assert options == {"-n", *(f"-{letter}" for letter in letters)}, name


def test_omitted_commands_are_listed() -> None:
    for name, options in LEFT_OUT.items():
        for option in options:
            assert f"`{name} {option}`" in PAGE.read_text()


def test_each_command_is_in_the_table() -> None:
    table = PAGE.read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-zA-Z]+)` \|", table, re.MULTILINE)
    assert rows == list(COMMANDS)


def test_each_metric_is_in_the_table() -> None:
    told = set(re.findall(r"`(rocketmq_[a-z_]+)`", PAGE.read_text()))
    made = set(re.findall(r'"(rocketmq_[a-z_]+)"', "".join(one.read_text() for one in METRICS.glob("*.py"))))
    assert told == made


def test_no_letter_means_two_things() -> None:
    commands = typer.main.get_group(app).commands
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        options = [option for one in command.params for option in one.opts]
        assert len(options) == len(set(options)), name
        assert {"-n", "--json"} <= set(options)
