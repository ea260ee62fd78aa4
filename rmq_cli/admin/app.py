"""``rmq admin``: administration of a running cluster, with the commands and option letters of mqadmin.

A command is an asynchronous function that takes an Admin and options, and returns a ResultTable, or yields several
one after the other. Its docstring is its help. What all commands share is here.
"""

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import typer

from rmq_cli.access import access_from_arguments, access_parameters
from rmq_cli.admin import cluster, consumer_progress, groups, lite, messages, topics, users
from rmq_cli.admin.options import Json, Namesrv
from rmq_cli.admin.result_table import ResultTable, show, show_all
from rmq_cli.commands import CommandGroup, RmqCommand
from rmq_cli.produce import DEFAULT_NAMESRV

Command = Callable[..., Awaitable[ResultTable] | AsyncIterable[ResultTable]]

COMMANDS: Final[dict[str, Command]] = {
    "clusterList": cluster.cluster_list,
    "topicList": topics.topic_list,
    "topicRoute": topics.topic_route,
    "topicStatus": topics.topic_status,
    "updateTopic": topics.update_topic,
    "deleteTopic": topics.delete_topic,
    "updateSubGroup": groups.update_group,
    "deleteSubGroup": groups.delete_group,
    "consumerProgress": consumer_progress.consumer_progress,
    "consumerConnection": groups.consumer_connection,
    "producerConnection": groups.producer_connection,
    "brokerStatus": cluster.broker_status,
    "getBrokerConfig": cluster.get_broker_config,
    "queryMsgById": messages.by_id,
    "queryMsgByKey": messages.by_key,
    "queryMsgByUniqueKey": messages.by_unique_key,
    "queryMsgByOffset": messages.by_offset,
    "printMsg": messages.print_messages,
    "sendMessage": messages.send,
    "consumeMessage": messages.consume_messages,
    "resetOffsetByTime": consumer_progress.reset_offset,
    "skipAccumulatedMessage": consumer_progress.skip_accumulated,
    "cloneGroupOffset": consumer_progress.clone_offset,
    "statsAll": cluster.stats_all,
    "brokerConsumeStats": consumer_progress.broker_consume_stats,
    "exportMetadata": cluster.export_metadata,
    "getBrokerLiteInfo": lite.broker_info,
    "getParentTopicInfo": lite.parent_info,
    "getLiteTopicInfo": lite.topic_info,
    "getLiteClientInfo": lite.client_info,
    "getLiteGroupInfo": lite.group_info,
    "triggerLiteDispatch": lite.trigger_dispatch,
    "createUser": users.create_user,
    "updateUser": users.update_user,
    "deleteUser": users.delete_user,
    "getUser": users.get_user,
    "listUser": users.list_users,
    "copyUser": users.copy_user,
    "createAcl": users.create_acl,
    "updateAcl": users.update_acl,
    "deleteAcl": users.delete_acl,
    "getAcl": users.get_acl,
    "listAcl": users.list_acls,
    "copyAcl": users.copy_acl,
}


def _runner(command: Command) -> Callable[..., int]:
    """Wrap a command for typer: without its Admin argument, with the options that all commands have."""

    def run_command(*, namesrv: str, as_json: bool, **options: Any) -> int:
        from rmq_core.client.admin.admin import DEFAULT_OPTIONS, Admin  # noqa: PLC0415 # --help does not need it
        from rmq_core.remoting.loop import run  # noqa: PLC0415

        access = access_from_arguments(options)

        async def main() -> int:
            settings = replace(DEFAULT_OPTIONS, tls=access.tls)
            async with Admin(namesrv, settings, credentials=access.credentials) as admin:
                answer = command(admin, **options)
                if isinstance(answer, AsyncIterable):
                    return await show_all(answer, as_json=as_json)
                return show(await answer, as_json=as_json)

        return run(main())

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *list(inspect.signature(command).parameters.values())[1:],
        inspect.Parameter("namesrv", keyword, default=DEFAULT_NAMESRV, annotation=Namesrv),
        inspect.Parameter("as_json", keyword, default=False, annotation=Json),
        *access_parameters(),
    ]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run_command.__doc__ = command.__doc__
    return run_command


app = typer.Typer(help="Administer a running cluster, by mqadmin's commands.", cls=CommandGroup)
for _name, _command in COMMANDS.items():
    app.command(_name, cls=RmqCommand)(_runner(_command))
