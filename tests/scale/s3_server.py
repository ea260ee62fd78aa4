"""moto's S3 on a free port of 127.0.0.1; it prints the port. It makes an object and looks whether one is there at once.

S3 has these two as one step. moto's own server looks for the service of each request, and logs it: a third of its time.
"""

import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.responses import S3Response
from werkzeug.serving import make_server

_one = threading.Lock()


class QuietHandler(MotoRequestHandler):
    """Logs no requests."""

    def log_request(self, *_: Any) -> None:
        pass


def _one_at_a_time(name: str) -> None:
    answer = getattr(S3Response, name)

    def locked(*arguments: Any, **named: Any) -> Any:
        with _one:
            return answer(*arguments, **named)

    setattr(S3Response, name, locked)


if __name__ == "__main__":
    for put in ("put_object", "_key_response_post"):
        _one_at_a_time(put)
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=QuietHandler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
