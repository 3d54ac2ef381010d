"""The report of an audit in a real browser: at phone and desktop width, in light and dark."""

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from tests.browser.conftest import Opened

CUT_OFF = """() => [...document.querySelectorAll("svg.chart")].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const inner = text.getBoundingClientRect();
    return inner.left < box.left - 1 || inner.right > box.right + 1
      || inner.top < box.top - 1 || inner.bottom > box.bottom + 1;
  }).map(text => text.textContent);
})"""
OVERLAPPING = """() => [...document.querySelectorAll("svg.chart")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
  return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3
  ).map(([other]) => `${one} / ${other}`));
})"""  # noqa: E501
LETTERS = """() => [...document.querySelectorAll("svg.chart text")].map(t => {
  const svg = t.ownerSVGElement;
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(t).fontSize) * scale;
})"""


def test_nothing_is_complained_of_and_nothing_is_asked_for(opened: Opened, report: Path) -> None:
    """The page opens from the disk without an error, and its own file is all that it loads."""
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]


def test_the_page_never_scrolls_sideways(opened: Opened) -> None:
    """With all details open, too, nothing is wider than the window; wide tables scroll inside."""
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.page.evaluate(width) == 0
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert opened.page.evaluate(width) == 0


def test_axe_finds_no_fault(opened: Opened) -> None:
    """No violation of axe-core's rules, contrast included, with all details open."""
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    found = Axe().run(opened.page)
    assert found.violations_count == 0, found.generate_report()


def test_letters_of_charts_are_whole_apart_and_readable(opened: Opened) -> None:
    """No label is cut off or drawn over another one, and none is under 10 pixels high."""
    assert opened.page.evaluate(CUT_OFF) == []
    assert opened.page.evaluate(OVERLAPPING) == []
    assert min(opened.page.evaluate(LETTERS)) >= 10


def test_every_chart_is_an_image_with_a_name(opened: Opened) -> None:
    """The browser tells assistive programs of each chart as an image with its name."""
    titles = [text or "" for text in opened.page.locator("svg.chart > title").all_text_contents()]
    assert len(titles) >= 6
    assert opened.page.get_by_role("img").count() == len(titles)
    for title in titles:
        assert opened.page.get_by_role("img", name=title, exact=True).count() == 1


def test_everything_can_be_reached_and_opened_by_keyboard(opened: Opened) -> None:
    """The first tab stop skips to the verdict; Enter on a summary opens its details."""
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "verdict"
    count = page.locator("summary").count()
    reached = 0
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            page.keyboard.press("Enter")
            reached += 1
            assert page.evaluate("document.activeElement.parentElement.open")
        if reached == count:
            break
    assert reached == count


def test_focus_is_visible(opened: Opened) -> None:
    """What has the focus has an outline."""
    link = opened.page.locator("nav a").first
    link.focus()
    opened.page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert opened.page.evaluate(outline) == "solid"
