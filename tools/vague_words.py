"""Counts vague words in names and in first sentences (CONTRIBUTING.md, "Names").

``python -m tools.vague_words`` fails where a thousand lines have more than ``LIMIT`` of them; with files or folders it
prints each place in them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCES: Final = ("rmq_formats", "rmq_core", "rmq_offline", "rmq_lakehouse", "rmq_cli", "spark_udfs", "jobs", "tools")
LIMIT: Final = 0.9  # it may only fall

# A local of this name tells its place in a sentence, and not the thing that it is.
_LOCALS: Final = frozenset({
    "asked", "found", "given", "gone", "heard", "known", "left", "made", "met", "one", "others", "own", "said", "seen",
    "taken", "theirs", "told", "wanted",
})  # fmt: skip
# Words of everyday life where the field has one of its own: tell (log, report, notify), keep (retain), land (commit).
_WORDS: Final = re.compile(
    r"(?<![a-z])(?:ask(?:s|ed)?|behind|bur(?:y|ies|ied)|doors?|doorkeeper|doorway|for(?:get|gets|got|gotten)|gives?|given"
    r"|gone|holds?|held|judges?|judged|keeps?|kept|knows?|known|land(?:s|ed|ing)?|let_go|meets?|met|mends?|mended"
    r"|ow(?:e|es|ed)|says?|said|seams?|settles?|settled|stretch|stretches|takes?|taken|tells?|told|theirs|whoever)(?![a-z])"
)
_OPENINGS: Final = re.compile(r"(?:What|Where|Who|Whose|Whether|Have)\b|See ``")


def vague_places(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each name and each first sentence with a vague word."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        line = getattr(node, "lineno", 1)
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in _LOCALS:
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
                if _WORDS.search(words):
                    yield line, name
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            sentence = re.split(r"\.\s|\n\n", ast.get_docstring(node) or "", maxsplit=1)[0]
            if _OPENINGS.match(sentence) or _WORDS.search(sentence.lower()):
                yield line, f'"""{" ".join(sentence.split())}"""'


def main(names: list[str]) -> int:
    """Print the places in the files and folders named, or the sum of all sources; return the exit code."""
    line_count = place_count = 0
    for name in names or SOURCES:
        for path in sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)]:
            places = list(vague_places(path))
            place_count += len(places)
            line_count += path.read_text("utf-8").count("\n")
            if names:
                sys.stdout.writelines(f"{path}:{line}: {text}\n" for line, text in places)
    rate = 1000 * place_count / max(line_count, 1)
    sys.stdout.write(f"{place_count} vague names and sentences in {line_count:,} lines: {rate:.1f} in 1,000\n")
    return int(not names and rate > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
