"""The page: one file that needs nothing else, from the result of an audit."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from kvbaton.audit.report.answers import flips_section, quality_section
from kvbaton.audit.report.effects import (
    effects_section,
    gains_section,
    latency_section,
    length_section,
)
from kvbaton.audit.report.method import method_section, trouble_section
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section
from kvbaton.audit.report.strata import verdicts_section
from kvbaton.audit.report.verdict import card, content_section

if TYPE_CHECKING:
    from jinja2 import Template

TITLE = "Does handing over the KV cache pay?"


def sections(result: Fields) -> list[Section]:
    """Everything below the card, in the order in which it is read."""
    return [
        content_section(result),
        effects_section(result),
        latency_section(result),
        length_section(result),
        quality_section(result),
        verdicts_section(result),
        gains_section(result),
        flips_section(result),
        trouble_section(result),
        method_section(result),
    ]


def render(result: Fields) -> str:
    """The page as HTML.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    page: str = _template().render(
        title=TITLE,
        subtitle=_subtitle(result),
        card=card(result),
        sections=sections(result),
        warnings=result.texts("warnings"),
        css=_file("page.css"),
    )
    return page


def _subtitle(result: Fields) -> str:
    known = (result.text("model"), result.text("dtype"))
    named = [text for text in known if text] or result.texts("pairs")
    sizes = [(result.count("units"), "units"), (result.count("questions"), "questions")]
    return ", ".join([*named, *(f"{count:,} {what}" for count, what in sizes if count)])


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_file("page.html"))
