"""The answer to a request whose handler has raised."""

import logging
from typing import Final

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.errors import RmqError

log = logging.getLogger(__name__)

MAX_REMARK: Final = 4096  # characters of an error's text


def failure(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    """Build the answer to a request whose handler has raised; unexpected exceptions are logged."""
    if isinstance(error, ResponseError):
        code, remark = error.code, error.remark
    elif isinstance(error, RmqError):
        code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
    else:
        log.error("request %(code)d failed", {"code": request.code}, exc_info=error)
        code, remark = int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"
    # It may quote what came in: no surrogates, which have no UTF-8, and not all of a large body.
    return request.response(code, remark[:MAX_REMARK].encode("utf-8", "replace").decode())
