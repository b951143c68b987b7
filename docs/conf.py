"""The API reference, made of docstrings: see launch/docs.sh."""

import pathlib
import re

project = "posattn_jax"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["attrs_block"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "posattn_jax"
SETUP = pathlib.Path(__file__).parents[1] / "setup.py"
if ADDRESS := re.findall(r'^ADDRESS = "(https://github.com/.+)"', SETUP.read_text(encoding="utf-8"), re.MULTILINE):
    html_theme_options = {"source_repository": ADDRESS[0], "source_branch": "main", "source_directory": "docs/"}
html_show_copyright = False
html_extra_path = ["playground.html"]
html_static_path = ["pages.css"]
html_css_files = ["pages.css"]
maximum_signature_line_length = 80  # a longer one has a line for each argument
default_role = "py:obj"
suppress_warnings = ["ref.python"]  # posattn_jax.nnx has the names of posattn_jax, which a name alone means
napoleon_custom_sections = [("Attributes", "params_style")]
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
FIELDS = "activation, bias_init, embedding_init, kernel_init, normalize, param_dtype"  # whose defaults have docstrings
autodoc_default_options = {"members": True, "special-members": "__call__", "exclude-members": FIELDS}

SECTION = re.compile(r"(Args|Attributes|Example|Raises|Returns):$")
SHAPE = re.compile(r"(?<![\w`])\[[^\[\]`]+\]")


def setup(app):
    app.connect("autodoc-process-docstring", write_as_rst, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", shorten)
    app.connect("build-finished", write_sitemap)


def write_sitemap(app, error):
    """For search engines, where the pages' own address is given: launch/docs.sh -D html_baseurl=https://HOST/PATH/"""
    if error is None and app.config.html_baseurl:
        pages = [*map(app.builder.get_target_uri, sorted(app.env.found_docs)), *html_extra_path]
        places = "".join(f"<url><loc>{app.config.html_baseurl}{page}</loc></url>\n" for page in pages)
        text = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n'
        (pathlib.Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")


def write_as_rst(app, what, name, obj, options, lines):
    """Docstrings are written for editors: what is set off and indented is verbatim, and so are shapes as [*R h d]."""
    written, indent, verbatim, in_example = [], 0, None, False
    for i, line in enumerate(lines):
        text = line.lstrip()
        here = len(line) - len(text)
        if not text:
            written.append("")
            continue
        if verbatim is not None and here < verbatim:
            verbatim = None
        above = lines[i - 1].strip() if i else ""
        if verbatim is None and not above and here > indent and not text.startswith(">>>"):
            written += [" " * indent + "::", ""]
            verbatim = here
        if verbatim is None:
            in_example = (in_example and bool(above)) or text.startswith(">>>")
            line = line if in_example else SHAPE.sub(r"``\g<0>``", line)
            indent = here + 2 * bool(SECTION.match(text))
        written.append(line)
    lines[:] = written


def shorten(app, what, name, obj, options, signature, returns):
    """Without the fields that every Linen module has, paths of modules, and addresses."""
    return tuple(text and shortened(text) for text in (signature, returns))


def shortened(text):
    text = re.sub(r",? ?parent: .*(?=\))", "", text)
    text = re.sub(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)
    text = re.sub(r"str \| type\[Any\] \| dtype \| SupportsDType", "DTypeLike", text)
    return re.sub(r"<(?:function|class|PjitFunction of <function) '?(\w+).*?>+(?=[,)])", r"\1", text)
