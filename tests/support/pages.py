"""Pages of HTML: their elements and scripts, and what becomes of them in a headless Chromium."""

import html.parser
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here")


class Parsed(html.parser.HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._script = [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id", "") if tag == "script" else None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[self._script] = data
            self._script = None


def visit(page: pathlib.Path) -> tuple[str, list[str]]:
    """The elements of a page once its scripts have run, and the lines on its console."""
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += ["--enable-logging=stderr", "--hide-scrollbars", "--virtual-time-budget=2000", "--dump-dom"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [BROWSER, *options, f"--user-data-dir={profile}", page.as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return result.stdout, re.findall(r":CONSOLE.*", result.stderr)
