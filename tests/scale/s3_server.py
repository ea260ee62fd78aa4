"""moto's S3 server, but for one thing: it looks whether an object is there, and makes it, as one step, as S3 does."""

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_one = threading.Lock()


def _one_at_a_time(name: str) -> None:
    answer = getattr(S3Response, name)

    def locked(*arguments: Any, **named: Any) -> Any:
        with _one:
            return answer(*arguments, **named)

    setattr(S3Response, name, locked)


if __name__ == "__main__":
    for put in ("put_object", "_key_response_post"):
        _one_at_a_time(put)
    main(sys.argv[1:])
