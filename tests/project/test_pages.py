"""The pages that we make ask for nothing; whatever is chosen, the console is empty, and they fit a phone."""

import html
import re

import pytest

from posattn_jax.analysis import report
from posattn_jax.use import explain
from tests.support.command import ROOT
from tests.support.pages import Parsed, needs_browser, visit

# Moves every slider to its ends, chooses every option, clicks and presses what there is; then tells how wide it all is.
PLAY = """<script>
addEventListener("load", () => {
  const all = selector => [...document.querySelectorAll(selector)];
  const set = (element, value) => {
    element.value = value;
    for (const name of ["input", "change"]) element.dispatchEvent(new Event(name, { bubbles: true }));
  };
  for (const slider of all("input[type=range]"))
    for (const value of [slider.min, slider.max, slider.defaultValue]) set(slider, value);
  for (const select of all("select")) for (const option of [...select.options].reverse()) set(select, option.value);
  for (const element of all("button, canvas, input[type=checkbox]")) {
    element.click();
    for (const key of ["ArrowUp", "ArrowRight"])
      element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
  parent.document.body.title = innerWidth + " " + document.documentElement.scrollWidth;
});
</script>
</body>"""


@pytest.fixture(scope="module", params=["playground", "report", "attention"])
def page(request):
    """The text of each: of a report that is committed, of a model that attends to an image."""
    if request.param == "playground":
        return (ROOT / "docs" / "playground.html").read_text()
    if request.param == "report":
        return of_a_report()
    run = request.getfixturevalue("digits_run")
    assert explain.explain(run, (), (), (), ()) == 0
    return (run / "attention.html").read_text()


def of_a_report():
    folder = ROOT / "docs" / "results" / "compare"
    pictures = "\n\n![comparison](figures/comparison.svg)\n"
    return report.to_html((folder / "report.md").read_text() + pictures, folder, "Which one?")


def test_it_asks_for_nothing(page):
    parsed = Parsed(page)
    for tag, attributes in parsed.elements:
        if tag == "a":  # asked for when a reader clicks
            assert attributes["href"] == "index.html"
            continue
        for name in ("src", "href", "action", "srcset"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"https?:|@import|url\(|fetch\(|import\(|XMLHttpRequest", page)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in parsed.elements
    assert "prefers-color-scheme: dark" in page
    if parsed.scripts:
        assert "default-src 'none'" in page


def play(page, folder, script=PLAY):
    """The lines on the console of a page, and what the script tells, in a frame as wide as a phone: no window is so."""
    page = html.escape(page.replace("</body>", script))
    frame = f'<iframe style="width: 390px; height: 844px; border: 0" srcdoc="{page}">'
    path = folder / "framed.html"
    path.write_text(f"<!DOCTYPE html><html><body>{frame}</iframe></body></html>")
    dom, console = visit(path)
    return console, re.findall(r'<body title="(.*?)"', dom)


@needs_browser
def test_it_works_on_a_phone(page, tmp_path):
    assert play(page, tmp_path) == ([], ["390 390"])


# Scrolls the first table to its right end; tells by how many pixels its first column then is off its left end, and
# whether it is below the number of hypotheses shown, above the verdicts, and lower than the screen.
SCROLL = """<script>
addEventListener("load", () => {
  const box = document.querySelector(".wide"), left = element => element.getBoundingClientRect().left;
  box.scrollLeft = box.scrollWidth;
  const off = Math.round(left(box.querySelector("tbody td")) - left(box));
  const [line, table, badge] = ["main > ul > li", ".wide", ".badge"].map(selector =>
    document.querySelector(selector).getBoundingClientRect().top);
  const isBetween = line < table && table < badge;
  parent.document.body.title = [box.scrollLeft > 100, off, isBetween, box.clientHeight < innerHeight].join(" ");
});
</script>
</body>"""


@needs_browser
def test_a_report_on_a_phone_has_its_table_after_one_line_which_keeps_its_first_column(tmp_path):
    assert play(of_a_report(), tmp_path, SCROLL) == ([], ["true 0 true true"])


@needs_browser
def test_errors_and_what_is_too_wide_are_seen(tmp_path):
    body = '<p style="width: 500px">.</p><canvas onclick="nothing()"></canvas>'
    page = f'<!DOCTYPE html><html><body style="margin: 0">{body}</body></html>'
    (line,), widths = play(page, tmp_path)
    assert "nothing is not defined" in line and widths == ["390 500"]
