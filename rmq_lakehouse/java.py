"""Java classes of a session, and files of Hadoop's file systems."""

from typing import Any


def java_class(jvm: Any, name: str) -> Any:
    """Return a Java class by its full name.

    For ``jvm.org.apache.…`` Py4J looks for a class of each package's name in 300 jars, which takes milliseconds.
    """
    return getattr(jvm, name)


def scala_object(jvm: Any, name: str) -> Any:
    """Return a Scala object by its full name."""
    return getattr(java_class(jvm, f"{name}$"), "MODULE$")


def read_file(files: Any, path: Any) -> bytes:
    """Read a file of a file system of Hadoop's."""
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()
