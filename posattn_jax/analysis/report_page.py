"""A report as one HTML page that needs no other file. It has a light and a dark style, and fits on a phone."""

import base64
import html
import pathlib
import re

import markdown

from posattn_jax.analysis.findings import VERDICTS

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def to_html(text: str, folder: pathlib.Path, title: str) -> str:
    """The Markdown of a report as an HTML page, with embedded pictures, and with verdicts as badges."""

    def embed(match: re.Match) -> str:
        data = base64.b64encode((folder / match[1]).read_bytes()).decode()
        return f'src="data:image/svg+xml;base64,{data}"'

    def badge(match: re.Match) -> str:
        return f'<li><strong class="badge {match[2].lower().replace(" ", "-")}">{match[1]}</strong>'

    body = markdown.markdown(text, extensions=["tables", "toc"])
    body = re.sub(r'src="(figures/[^"]*)"', embed, body)
    body = re.sub(rf"<li><strong>(({'|'.join(VERDICTS)})[^<]*)\.</strong>", badge, body)
    body = re.sub(r"(<table>.*?</table>)", r'<div class="wide" tabindex="0">\1</div>', body, flags=re.DOTALL)
    body = re.sub(r"(<h2.*?)(?=<h2|\Z)", r"<section>\n\1</section>\n", body, flags=re.DOTALL)
    style = pathlib.Path(__file__).with_name("report_page.css").read_text(encoding="utf-8")
    return PAGE.format(title=html.escape(title), style=style, body=body)
