"""Hooks of MkDocs: pages written for a repository's browser become pages of a site.

Links to files outside of ``docs`` lead to the site's copy of a page of the project, or are text. Lists and tables get
the empty line before them that Python-Markdown needs and GitHub does not.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

ROOT: Final = Path(__file__).parents[1]
PROJECT_PAGES: Final = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^ *```")
_TITLED_FENCE: Final = re.compile(r"^( *```\w+) +(.+)$")  # ```hex mixed/checkpoint@0 checkpoint
_LIST: Final = re.compile(r"(?:[-*+]|\d+\.) ")


def on_files(files: Any, config: Any) -> Any:
    """Add the project's own pages to those of ``docs``."""
    for source, page in PROJECT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001, MkDocs' signature
    """Rewrite a page's links, and separate its lists and tables from the paragraphs before them."""
    sources = {copy: source for source, copy in PROJECT_PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    lines: list[str] = []
    in_code = False
    for line in markdown.split("\n"):
        in_code ^= bool(_FENCE.match(line))
        line = _TITLED_FENCE.sub(r'\1 title="\2"', line)  # noqa: PLW2901
        if not in_code:
            if lines and begins_block(lines[-1], line):
                lines.append("")
            line = rewrite_links(line, source, page.file.src_uri)  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)


def begins_block(before: str, line: str) -> bool:
    """Return whether a list or a table begins here without an empty line before it."""
    if not before.strip() or before.startswith((" ", "#", "|")) or _LIST.match(before):
        return False
    return bool(_LIST.match(line)) or line.startswith("|")


def rewrite_links(line: str, source: str, page: str) -> str:
    """Rewrite the links of a line, from the page's path in the repository to its path in the site."""

    def link(match: re.Match[str]) -> str:
        target = site_path(match[2], source, page)
        return match[1] if target is None else f"[{match[1]}]({target})"

    def image(match: re.Match[str]) -> str:
        return f"![{match[1]}]({site_path(match[2], source, page)})"

    return _LINK.sub(link, _IMAGE.sub(image, line))


def site_path(target: str, source: str, page: str) -> str | None:
    """Return the path of a link's target relative to the page, or None if the site does not have it."""
    path, mark, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    repository_path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    name = PROJECT_PAGES.get(repository_path)
    if repository_path == "docs/formats":
        name = "formats/store.md"
    elif repository_path.startswith("docs/"):
        name = repository_path.removeprefix("docs/")
    if name is None:
        return None
    return posixpath.relpath(name, posixpath.dirname(page) or ".") + mark + anchor
