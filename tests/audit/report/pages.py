"""What tests ask of a page: its words, its elements, its places."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

EMPTY = frozenset({"meta", "link", "br", "hr", "img", "input"})
HIDDEN = frozenset({"style", "script"})


@dataclass
class Page(HTMLParser):
    """A parsed page: elements in their order, and the words that a reader meets."""

    source: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in EMPTY:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that is closed where it is opened."""
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be of this kind."""
        assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note words, but not those of styles."""
        if not set(self.unclosed) & HIDDEN:
            self.words.append(data)

    @property
    def text(self) -> str:
        """Everything that a reader meets, with single spaces."""
        spoken = [
            value
            for _, attributes in self.elements
            for key, value in attributes.items()
            if key in ("title", "aria-label", "alt")
        ]
        return re.sub(r"\s+", " ", " ".join([*self.words, *spoken]))

    def every(self, tag: str) -> list[dict[str, str]]:
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        """All ids."""
        return [a["id"] for _, a in self.elements if "id" in a]
