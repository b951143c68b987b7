"""No folder of tests has a name that pytest leaves out, such as "build"."""

import fnmatch
import pathlib

TESTS = pathlib.Path(__file__).parents[1]


def test_no_folder_is_left_out(request):
    patterns = request.config.getini("norecursedirs")
    folders = {path.relative_to(TESTS).parent for path in TESTS.rglob("test_*.py")}
    names = {name for folder in folders for name in folder.parts}
    assert "config" in names
    assert not [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
