"""x."""


def query() -> int:
    """X."""
    return 0
