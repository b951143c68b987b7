"""Writes the project's address, ADDRESS in setup.py, wherever a text must have it: python launch/address.py [CLONE]

These are the notebooks' form and badge "Open in Colab", the README's badge of CI, and CITATION.cff. Without an address
they have none, and the badges are for GitHub alone, so that no link leads nowhere. The package's metadata and
docs/conf.py read setup.py themselves.
"""

import argparse
import pathlib
import re

GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com"


def address_of(clone: pathlib.Path) -> str:
    """What setup.py says, which is not run for it."""
    (address,) = re.findall(r'^ADDRESS = "(.*)"', (clone / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    return address.rstrip("/")


def with_line(text: str, start: str, rest: str, place: str) -> str:
    """The text with one line that begins with `start`, above the first with `place`; with none if `rest` is empty."""
    text = re.sub(rf"^{re.escape(start)}.*\n", "", text, flags=re.MULTILINE)
    line = f"{start}{rest}\n" if rest else ""
    return re.sub(rf"^(?={re.escape(place)})", lambda _: line, text, count=1, flags=re.MULTILINE)


def notebook(text: str, name: str, address: str) -> str:
    """The text of a notebook: its script, or its JSON, where quotes are escaped and each line is a string."""
    found = f"git+{address}" if address else ""
    text = re.sub(r'(ADDRESS = \\?").*?(\\?"  # @param)', lambda each: f"{each[1]}{found}{each[2]}", text)
    begin, end = ('    "', '\\n",') if text.startswith("{") else ("# ", "")
    opens = f"{COLAB}/github/{address.removeprefix(GITHUB)}/blob/main/colabs/{name}.ipynb"
    rest = f"({COLAB}/assets/colab-badge.svg)]({opens}){end}" if address.startswith(GITHUB) else ""
    return with_line(text, f"{begin}[![Open in Colab]", rest, f"{begin}# ")


def written(path: str, text: str, address: str) -> str:
    """The text of a file with this address."""
    if path == "README.md":
        ci = f"{address}/actions/workflows/ci.yml"
        return with_line(text, "[![CI]", f"({ci}/badge.svg)]({ci})" if address.startswith(GITHUB) else "", "[![Python")
    if path == "CITATION.cff":
        return with_line(text, "repository-code: ", f'"{address}"' if address else "", "authors:")
    return notebook(text, pathlib.Path(path).stem, address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    clone = parser.parse_args().clone
    if not (clone / "setup.py").is_file():
        parser.error(f"{clone}: expected a clone, which has a setup.py")
    address = address_of(clone)
    notebooks = [path for path in sorted((clone / "colabs").iterdir()) if path.suffix in (".py", ".ipynb")]
    for path in [clone / "README.md", clone / "CITATION.cff", *notebooks]:
        text = path.read_text(encoding="utf-8")
        new = written(path.relative_to(clone).as_posix(), text, address)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(clone))


if __name__ == "__main__":
    main()
