"""A real S3 server in a process of its own."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
import pytest

ROOT = Path(__file__).parents[2]
AWS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for one test."""

    server: str
    name: str
    files: pafs.S3FileSystem

    def uri(self, path: str) -> str:
        """What a user gives for something in the bucket."""
        # With the keys, for a session that another test started does not have this one's environment.
        keys = f"{AWS['AWS_ACCESS_KEY_ID']}:{AWS['AWS_SECRET_ACCESS_KEY']}"
        return f"s3://{keys}@{self.name}/{path}?endpoint_override={self.server}&scheme=http"

    def upload(self, directory: Path, path: str) -> str:
        """Put a directory's files under a path; its URI."""
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                with self.files.open_output_stream(f"{self.name}/{path}/{file.relative_to(directory)}") as target:
                    target.write(file.read_bytes())
        return self.uri(path)

    def tree(self, path: str) -> dict[str, bytes]:
        """All objects below a path by their relative names; markers of directories are none."""
        root = f"{self.name}/{path}"
        infos = self.files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        files = [info.path for info in infos if info.type == pafs.FileType.File]
        found = {}
        for name in files:
            with self.files.open_input_stream(name) as source:
                found[name.removeprefix(f"{root}/")] = source.read()
        return found


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Host and port of an S3 server; this process may use it."""
    before = {name: os.environ.get(name) for name in AWS}
    os.environ.update(AWS)
    command = [sys.executable, "-m", "tests.scale.s3_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value


@pytest.fixture
def bucket(s3_server: str) -> Bucket:
    """An empty bucket."""
    return new_bucket(s3_server)


def new_bucket(s3_server: str) -> Bucket:
    """An empty bucket of a server."""
    files = pafs.S3FileSystem(endpoint_override=s3_server, scheme="http", allow_bucket_creation=True)
    name = f"rmq-{uuid.uuid4().hex[:12]}"
    files.create_dir(name)
    return Bucket(s3_server, name, files)


@pytest.fixture
def golden_on_s3(bucket: Bucket, golden: Callable[[str], Path]) -> Callable[[str], str]:
    """URI of a golden store, put into the bucket."""
    return lambda name: bucket.upload(golden(name) / "store", f"stores/{name}")
