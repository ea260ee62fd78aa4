"""A REST catalog on 127.0.0.1 over pyiceberg's SQL catalog: as much of the specification as an export asks for."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import CommitTableRequest, Table


def _told(table: Table) -> dict[str, Any]:
    return {"metadata-location": table.metadata_location, "metadata": json.loads(table.metadata.model_dump_json())}


def _answer(catalog: SqlCatalog, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a request."""
    match path.partition("?")[0].strip("/").split("/")[1:]:
        case ["config"]:
            return 200, {"defaults": {}, "overrides": {}}
        case ["namespaces"]:
            given = json.loads(body)
            catalog.create_namespace_if_not_exists(tuple(given["namespace"]))
            return 200, given
        case ["namespaces", name]:
            return (200, {"namespace": [name], "properties": {}}) if catalog.namespace_exists(name) else (404, {})
        case ["namespaces", namespace, "tables"]:
            asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            shape = {"schema": asked.table_schema, "location": asked.location, "properties": asked.properties or {}}
            if asked.partition_spec is not None:
                shape["partition_spec"] = asked.partition_spec
            create = catalog._create_staged_table if asked.stage_create else catalog.create_table
            return 200, _told(create((namespace, asked.name), **shape))
        case ["namespaces", namespace, "tables", name]:
            table = catalog.load_table((namespace, name))
            if method == "POST":
                commit = CommitTableRequest.model_validate_json(body)
                catalog.commit_table(table, commit.requirements, commit.updates)
                table = catalog.load_table((namespace, name))
            return 200, _told(table)
    return 404, {}


@contextmanager
def rest_catalog(directory: Path, **given: str) -> Iterator[str]:
    """Serve a catalog whose tables are in a directory, or in the ``warehouse`` given; gives its URI."""
    options = {"uri": f"sqlite:///{directory}/rest.db?timeout=60", "warehouse": f"file://{directory}/warehouse"}
    with SqlCatalog("rest", **options | given) as catalog:

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    status, told = _answer(catalog, self.command, self.path, body)
                except NoSuchTableError as error:
                    status, told = 404, _error(404, "NoSuchTableException", error)
                except (CommitFailedException, TableAlreadyExistsError) as error:
                    status, told = 409, _error(409, "CommitFailedException", error)
                sent = b"" if self.command == "HEAD" else json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_HEAD = _serve  # noqa: N815 # names of the standard library

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def _error(code: int, kind: str, error: Exception) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": kind, "code": code}}
