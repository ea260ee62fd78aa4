"""Frames and bodies of the protocol, to be mutated, and what reads them."""

import random
from contextlib import suppress

from rmq_core.remoting import namesrv_requests, pop, requests
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import Fields, read_fields
from rmq_core.remoting.frames import FrameParser, encode_frame
from rmq_core.remoting.header import request
from rmq_formats.errors import FormatError
from tests.remoting import test_bodies as bodies
from tests.remoting.test_fields import SEND_V2

FRAMES = [encode_frame(request(310, dict(SEND_V2), b"body", serialize_type=kind)) for kind in (0, 1)]
BODIES = [bodies.HEARTBEAT, bodies.ROUTE, bodies.TOPICS, bodies.GROUP, bodies.CONNECTION, bodies.LOCK, bodies.BARE,
          bodies.LITE]  # fmt: skip
KINDS = bodies.all_structs()
FIELDS = [
    kind
    for module in (requests, namesrv_requests, pop)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Fields) and kind is not Fields
]
PROPERTIES = b"listenPort=9876\n# x\nkey\\ a = \\u4e2d\\\n b"


def read_frames(data: bytes, dice: random.Random) -> None:
    for command in FrameParser().feed(data):
        with suppress(ResponseError, FormatError):
            read_fields(command, dice.choice(FIELDS))
        with suppress(FormatError):
            encode_frame(command)


def read_body(data: bytes, dice: random.Random) -> None:
    body = decode_body(data, dice.choice(KINDS))
    encode_body(body)
