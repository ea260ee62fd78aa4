"""``rmq admin``: the live cluster, by mqadmin's commands, their names and the letters of their options.

A command is an asynchronous function that takes an Admin and options, and gives an Answer, or several one after
the other. Its first line of documentation is its help. What all of them do stands here once.
"""

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final

import typer

from rmq_core.cli import admin_cluster, admin_groups, admin_messages, admin_progress, admin_stats, admin_topics
from rmq_core.cli.admin_answers import Answer, show, show_all
from rmq_core.cli.admin_options import Json, Namesrv
from rmq_core.cli.produce import DEFAULT_NAMESRV, credentials

Command = Callable[..., Awaitable[Answer] | AsyncIterable[Answer]]

COMMANDS: Final[dict[str, Command]] = {
    "clusterList": admin_cluster.cluster_list,
    "topicList": admin_topics.topic_list,
    "topicRoute": admin_topics.topic_route,
    "topicStatus": admin_topics.topic_status,
    "updateTopic": admin_topics.update_topic,
    "deleteTopic": admin_topics.delete_topic,
    "updateSubGroup": admin_groups.update_group,
    "deleteSubGroup": admin_groups.delete_group,
    "consumerProgress": admin_progress.consumer_progress,
    "consumerConnection": admin_groups.consumer_connection,
    "producerConnection": admin_groups.producer_connection,
    "brokerStatus": admin_cluster.broker_status,
    "getBrokerConfig": admin_cluster.get_broker_config,
    "queryMsgById": admin_messages.by_id,
    "queryMsgByKey": admin_messages.by_key,
    "queryMsgByUniqueKey": admin_messages.by_unique_key,
    "queryMsgByOffset": admin_messages.by_offset,
    "printMsg": admin_messages.print_messages,
    "sendMessage": admin_messages.send,
    "consumeMessage": admin_messages.consume_messages,
    "resetOffsetByTime": admin_progress.reset_offset,
    "skipAccumulatedMessage": admin_progress.skip_accumulated,
    "cloneGroupOffset": admin_progress.clone_offset,
    "statsAll": admin_stats.stats_all,
    "brokerConsumeStats": admin_progress.broker_consume_stats,
    "exportMetadata": admin_stats.export_metadata,
}


def _runner(command: Command) -> Callable[..., int]:
    """The command as typer takes it: without its Admin, with the options that all commands have."""

    def run_command(*, namesrv: str, as_json: bool, **options: Any) -> int:
        from rmq_core.client import Admin  # noqa: PLC0415 # --help does not need it
        from rmq_core.remoting.loop import run  # noqa: PLC0415

        async def main() -> int:
            async with Admin(namesrv, credentials=credentials()) as admin:
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
    ]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run_command.__annotations__ = {one.name: one.annotation for one in parameters}
    run_command.__doc__ = command.__doc__
    return run_command


app = typer.Typer(help="Administer a running cluster, by mqadmin's commands.", no_args_is_help=False)
for _name, _command in COMMANDS.items():
    app.command(_name)(_runner(_command))
