"""One place has the project's address, ADDRESS in setup.py: all else reads it, or is written from it."""

import json
import re
import shutil
import subprocess
import sys

import jupytext
import nbformat
import pytest

from tests.support.command import ROOT
from tests.support.packaging import metadata

ADDRESS = "https://github.com/owner/posattn_jax"
FILES = ("setup.py", "README.md", "CITATION.cff")


@pytest.fixture
def clone(tmp_path):
    """What has the address."""
    shutil.copytree(ROOT / "colabs", tmp_path / "colabs")
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def write(clone, address=None):
    """Sets the address, and writes it where it belongs; returns all texts."""
    if address is not None:
        setup = clone / "setup.py"
        given = f'ADDRESS = "{address}"\n'
        lines = setup.read_text().splitlines(keepends=True)
        setup.write_text("".join(given if line.startswith("ADDRESS = ") else line for line in lines))
    subprocess.run([sys.executable, ROOT / "launch" / "address.py", clone], check=True, capture_output=True)
    return {str(path.relative_to(clone)): path.read_text() for path in clone.rglob("*.*") if path.is_file()}


def test_all_that_is_committed_has_the_address_of_setup_py(clone):
    for name, text in write(clone).items():
        assert text == (ROOT / name).read_text(), name


@pytest.mark.parametrize("address, badge", [(ADDRESS, True), ("https://host/group/posattn_jax", False)])
def test_an_address_is_written_everywhere_and_taken_back(clone, address, badge):
    """Both badges are for GitHub alone."""
    before = write(clone, "")
    after = write(clone, address)
    assert (f"[![CI]({address}/actions/workflows/ci.yml/badge.svg)]" in after["README.md"]) == badge
    assert f'\nrepository-code: "{address}"\nauthors:' in after["CITATION.cff"]
    assert "MeenaAlfons/posattn" in after["CITATION.cff"], "the address of a paper's code stays"
    for path in sorted((clone / "colabs").glob("*.ipynb")):
        notebook, script = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))
        assert [cell.source for cell in notebook.cells] == [cell.source for cell in script.cells]
        assert f'\nADDRESS = "git+{address}"  # @param' in notebook.cells[1].source
        first = notebook.cells[0].source.splitlines()
        opens = f"https://colab.research.google.com/github/owner/posattn_jax/blob/main/colabs/{path.name})"
        assert first[0].endswith(opens) == badge and first[badge].startswith("# ")
        assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=1, ensure_ascii=False) + "\n"
    assert write(clone, "") == before


def test_the_metadata_has_the_address(clone):
    write(clone, ADDRESS)
    told = metadata(clone)
    assert told["project_urls"] == {
        "Source": ADDRESS,
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Citation": f"{ADDRESS}/blob/main/CITATION.cff",
    }
    links = re.findall(r"\]\(([^)]+)", told["long_description"])
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    assert f"]({ADDRESS}/raw/main/docs/cifar_spans.png)" in told["long_description"]
    write(clone, "")
    told = metadata(clone)
    assert told["project_urls"] == {} and told["long_description"] == (clone / "README.md").read_text()


def test_the_badges_say_what_setup_py_says(clone):
    told = metadata(clone)
    versions = [each.split()[-1] for each in told["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    for name, value in (("python", " | ".join(versions)), ("license", told["license_expression"])):
        assert f"<title>{name}: {value}</title>" in (ROOT / "docs" / f"badge_{name}.svg").read_text()
    assert f"[![Python {', '.join(versions)}](docs/badge_python.svg)]" in (ROOT / "README.md").read_text()
