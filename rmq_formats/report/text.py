"""Words and numbers on report pages."""

from html import escape


def safe(value: object) -> str:
    """Text out of a store, as HTML: what would steer a page or cannot be shown becomes harmless."""
    text = str(value)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return escape(text)


def bytes_text(size_bytes: float) -> str:
    """``397 B``, ``1.0 MiB``, ``6.1 GiB``."""
    units = ["KiB", "MiB", "GiB", "TiB"]
    unit = "B"
    while size_bytes >= 1000 and units:
        size_bytes /= 1024
        unit = units.pop(0)
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def tone(errors: int, warnings: int) -> str:
    """The CSS class of something with so many faults."""
    return "error" if errors else "warning" if warnings else "sound"
