"""Cards of notebooks: text out of a store stays text, and nothing is fetched."""

from html.parser import HTMLParser

from rmq_formats.html_text import bytes_text, card, card_findings, counted, safe


class _Tags(HTMLParser):
    """Tags in their order; unbalanced ones are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name in {"src", "href"} or name.startswith("on")]
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_card_is_whole_and_shows_text_as_text() -> None:
    findings = card_findings([("error", "error", "<i>code", 1234, "do & mend")])
    shown = card(
        "<script>alert()</script>", [("na<me", "1 > 0"), ("empty", "")], verdict="a & b", tone="error", more=findings
    )
    assert _Tags(shown).seen == {"div", "span", "table", "tr", "td"}
    for text in ("&lt;script&gt;", "na&lt;me", "1 &gt; 0", "a &amp; b", "&lt;i&gt;code", "1,234", "do &amp; mend"):
        assert text in shown
    assert "empty" not in shown


def test_a_card_without_findings_has_no_table_of_them() -> None:
    assert card_findings([]) == ""
    _Tags(card("title", []))


def test_what_would_steer_a_page_is_replaced() -> None:
    assert safe("a\x1b\u202eb") == "a\ufffd\ufffdb"


def test_sizes_and_counts_read_well() -> None:
    assert [bytes_text(size) for size in (0, 397, 1 << 20, 6.1 * (1 << 30))] == ["0 B", "397 B", "1.0 MiB", "6.1 GiB"]
    assert (counted(1, "file"), counted(2000, "file")) == ("1 file", "2,000 files")
