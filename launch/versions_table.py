"""What ran in the environments of launch/versions.sh, as Markdown: python launch/versions_table.py FOLDER ..."""

import pathlib
import re
import sys
from xml.etree import ElementTree

ATTENTION = "tests.ops.attention"
# Of tests, by the beginnings of their modules' names.
COLUMNS = {
    "implementations, float64": (f"{ATTENTION}.test_", f"{ATTENTION}.xla.", f"{ATTENTION}.cpu."),
    "`fused` for GPUs, emulated": (f"{ATTENTION}.cuda.",),
    "`fused` for TPUs, interpreted and lowered": (f"{ATTENTION}.tpu.",),
    "layers": ("tests.nn.",),
    "checkpoints": ("tests.train.",),
    "training": ("tests.test_main",),
    "prediction": ("tests.use.test_predict",),
    "export": ("tests.use.test_export",),
}
SHOWN = ("jax", "flax", "numpy", "orbax-checkpoint")


def row(folder: pathlib.Path) -> list[str]:
    """The cells of one environment."""
    python, _, name = folder.name.partition("-")
    frozen, core, results = (folder / each for each in ("freeze.txt", "core.txt", "results.xml"))
    text = frozen.read_text() if frozen.exists() else ""  # where the installation failed
    freeze = dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))
    # Not where the environment has more.
    tried = "-" if not core.exists() else "alone" if core.read_text().startswith("core alone") else "**no**"
    tests = list(ElementTree.parse(results).iter("testcase")) if results.exists() else []
    return [
        name if name in ("least", "newest", "colab") else "",
        python,
        *(freeze.get(each, "-") for each in SHOWN),
        tried,
        *(cell([test for test in tests if f"{test.get('classname')}.".startswith(of)]) for of in COLUMNS.values()),
    ]


def cell(tests: list[ElementTree.Element]) -> str:
    """Of some tests: how many passed, or failed; a dash where all were skipped."""
    failed = sum(test.find("failure") is not None or test.find("error") is not None for test in tests)
    passed = sum(len(test) == 0 for test in tests)
    if failed:
        return f"**{failed} of {failed + passed} failed**"
    return str(passed) if passed else "-"


def main(folders: list[str]) -> None:
    header = ["versions", "Python", *SHOWN, "core", *COLUMNS]
    for cells in (header, ["---"] * len(header), *(row(pathlib.Path(folder)) for folder in folders)):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
