"""What a stranger sends to a name server at its limits."""

import asyncio
import zlib
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.bodies.routes import encode_registration
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import write_fields
from tests.broker.frame_fuzz import FuzzReport, fuzz_frames
from tests.namesrv.conftest import Asker, Clock
from tests.namesrv.registrations import broker, topics
from tests.namesrv.test_processor import register
from tests.support.processes.fresh_processes import in_fresh_process
from tests.support.torture import TIMES, rounds


@pytest.fixture
def config(config: NamesrvConfig) -> NamesrvConfig:
    return replace(config, max_registration_topics=100, max_kv_config_bytes=100_000)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registration_has_a_limit_of_topics(asker: Asker, compressed: bool) -> None:
    fields = write_fields(broker(compressed=compressed))
    most = encode_registration(topics(*(f"T{n}" for n in range(100))), compressed)
    assert (await asker.ask(RequestCode.REGISTER_BROKER, fields, most)).code == 0
    more = encode_registration(topics(*(f"T{n}" for n in range(200))), compressed)
    answer = await asker.ask(RequestCode.REGISTER_BROKER, fields, more)
    assert (answer.code, "too many topics" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_registration_that_is_a_bomb_is_refused(asker: Asker) -> None:
    version = b'{"counter":1}'
    bomb = zlib.compress(pack(">i", len(version)) + version + pack(">i", 1 << 30) + bytes(32 << 20), 9)
    answer = await asker.ask(RequestCode.REGISTER_BROKER, write_fields(broker(compressed=True)), bomb)
    assert (answer.code, "inflates to too much" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_settings_of_too_many_bytes_are_refused(asker: Asker) -> None:
    answer = await asker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"a\\\n" * (700 << 10))
    assert (answer.code, "maxBodyBytes" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


async def test_the_key_value_configuration_does_not_grow_for_ever(asker: Asker, tmp_path: Path) -> None:
    codes = [(await asker.ask(100, {"namespace": "n", "key": f"k{n}", "value": "v" * 40_000})).code for n in range(4)]
    assert codes == [0, 0, ResponseCode.INVALID_PARAMETER, ResponseCode.INVALID_PARAMETER]
    assert (tmp_path / "kvConfig.json").stat().st_size < 100_000
    assert (await asker.ask(100, {"namespace": "n", "key": "k0", "value": ""})).code == 0


async def _fuzz_name_server(config: NamesrvConfig, seed: int, every_code: bool) -> FuzzReport:
    async with NameServer(config, Clock()) as server, RemotingClient() as client:
        asker = Asker(server, client)
        await register(asker, broker("healthy"), topics("Healthy", "U"))

        async def healthy() -> None:
            answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Healthy"})
            assert answer.code == 0

        codes = sorted(server._server._handlers)
        codes.remove(RequestCode.DELETE_TOPIC_IN_NAMESRV)
        limits_of = codes if every_code else [RequestCode.REGISTER_BROKER, codes[seed % len(codes)]]
        return await fuzz_frames(server.address, codes, seed, 300, limits_of=limits_of, healthy=healthy)


def fuzz_name_server(config: NamesrvConfig, seed: int, every_code: bool) -> FuzzReport:
    return asyncio.run(_fuzz_name_server(config, seed, every_code))


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(1))
def test_no_frame_keeps_the_loop_or_takes_the_memory(config: NamesrvConfig, seed: int) -> None:
    report = in_fresh_process(fuzz_name_server, config, seed, every_code=TIMES > 1)
    assert report.healthy > 0
    assert report.longest_cpu_s < (1.0 if TIMES == 1 else 0.1), (seed, report)
    assert report.grown_bytes < 4 * (16 << 20) + (48 << 20), (seed, report)  # 48 MiB are the stranger's own
