"""Whether installing this package would leave an environment as it is: python launch/keep_check.py FOLDER_OF_THE_WHEEL

Asks pip what it would install into the environment of this Python, for the core and for every extra that Colab's users
may want. Exit codes: 0 it would only add, 1 it would replace what is there, or the core would add more than ADDED.
"""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

ADDED = {"posattn-jax", "jaxtyping", "wadler-lindig", "ml-collections"}  # by the core


def would_install(wheel: str) -> set[str]:
    """The distributions that pip would install for it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet"]
    report = json.loads(subprocess.run([*pip, "--report=-", wheel], check=True, capture_output=True, text=True).stdout)
    return {_normal(each["metadata"]["name"]) for each in report["install"]}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(folder: str) -> int:
    (wheel,) = pathlib.Path(folder).resolve().glob("posattn_jax-*.whl")
    there = {_normal(each.name) for each in importlib.metadata.distributions()}
    code = 0
    for extras, allowed in (("", ADDED), ("[train,tfds,nlp,export]", None)):
        added = would_install(f"{wheel}{extras}")
        replaced, more = added & there, added - allowed if allowed else set()
        told = [", ".join(sorted(names)) or "nothing" for names in (added - there, replaced)]
        print(f"posattn_jax{extras} would add {told[0]}, and replace {told[1]}")
        if replaced or more:
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
