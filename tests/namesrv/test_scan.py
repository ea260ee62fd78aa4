"""A scan of the name server: every request code, without what it needs, at sizes up to the limits."""

import asyncio

import pytest

from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import request
from rmq_core.remoting.settings import ServerSettings
from tests.namesrv.conftest import Asker
from tests.namesrv.registrations import broker, topics
from tests.namesrv.test_processor import content, register

LIMITS = ServerSettings()
CODES = sorted({*map(int, RequestCode), 0, -1, 1, 9_999, 2**31 - 1})
# Those who ask for lists are given them, as brokers, clients and tools need them.
OPEN = {
    RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,  # of nothing
}  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, LIMITS.max_body_bytes, LIMITS.max_body_bytes + 1, LIMITS.max_list_bytes + 1])
async def test_each_code_is_answered_and_changes_nothing(asker: Asker, size: int) -> None:
    await register(asker, broker(), topics("T", "U"))
    routes = content(await asker.ask(RequestCode.GET_BROKER_CLUSTER_INFO))
    codes = CODES if size <= LIMITS.max_body_bytes + 1 else CODES[::9]
    async with RemotingClient() as stranger:
        for at in range(0, len(codes), 32):
            some = codes[at : at + 32]
            answers = await asyncio.gather(
                *(stranger.invoke(asker.server.address, request(code, {}, b"{" * size), 60) for code in some)
            )
            for code, answer in zip(some, answers, strict=True):
                if answer.code != ResponseCode.SUCCESS:
                    assert bytes(answer.body) == b""
                    assert answer.remark
                else:
                    assert code in OPEN, (code, answer)
    assert content(await asker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == routes
    assert (await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0
