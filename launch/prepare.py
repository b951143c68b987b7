"""Makes a published set into what our configs read, of its official files, whose checksums are verified.

  python launch/prepare.py NAME FILES [--download] [--out=data/NAME] [--partial]

NAME is iwslt14, wmt14_en_de, wmt14_en_fr, wmt18_en_zh, wikitext103, glue, cifar100 or imagenet64. FILES is the folder
of its official files, as they are published; docs/data.md has a table of them. --download fetches those that are
missing, where their hosts allow it. --partial leaves out what is missing. The folder --out is there only once it is
whole; SHA256SUMS and prepared.json in it say what it holds and of what it was made.
Exit codes: 0 done, 1 failed while running, 2 wrong input, 130 stopped by Ctrl-C.
"""

import argparse
import pathlib
import sys

from posattn_jax.system import checksums, command_line, extras
from posattn_jax.system.errors import InputError, RunError
from posattn_jax.system.files import read_json, write_json

RECORD = "prepared.json"


def official_files(name: str, folder: pathlib.Path, download: bool, partial: bool) -> dict[str, pathlib.Path]:
    """Those of a set that are there, by their names.

    Raises:
      InputError: some are missing or damaged, each of which is told in a line, and not to be left out.
    """
    from posattn_jax.data.official.sets import SETS

    found, wrong = {}, 0
    for file in SETS[name].files:
        try:
            found[file.name] = file.get(folder, download)
        except InputError as error:
            wrong += 1
            print(" ".join(str(error).split()))
    if wrong and not (partial and found):
        also = "" if not found else "; --partial leaves them out"
        raise InputError(f"{name}: {wrong} of {len(SETS[name].files)} official files cannot be had, see above{also}")
    return found


def prepare(
    name: str, files: pathlib.Path, out: pathlib.Path | None = None, download: bool = False, partial: bool = False
) -> None:
    """Makes a set in a folder, by default data/NAME, unless it is there, and says what there is and how it is read.

    Raises:
      InputError: there is no such set, its files cannot be had, or the folder has something else; or there is an `out`
        for a set whose official files are read as they are.
    """
    from posattn_jax.data.official.sets import SETS  # here, so that a library that is missing is told in a line

    if name not in SETS:
        raise InputError(f'name="{name}": expected one of {", ".join(SETS)}')
    extras.need(*SETS[name].needs)
    write = SETS[name].write
    if write is None:
        if out is not None:
            raise InputError(f"--out={out}: expected none: the official files of {name} are read as they are")
        official_files(name, files, download, partial)
        out = files
        print(f"{files}: its official files are whole, and read as they are")
    else:
        out = out or pathlib.Path("data", name)
        if not _is_prepared(out):
            there = official_files(name, files, download, partial)

            def make(folder: pathlib.Path) -> None:
                counts = write(there, folder)
                write_json(folder / RECORD, {"set": name, "files": sorted(there), "counts": counts})

            checksums.keep_folder(out, make)
        record = read_json(out / RECORD)
        print(f"{out}: {record['set']}, of {', '.join(record['files'])}")
        for part, number in record["counts"].items():
            print(f"{out / part}: {number:,} lines")
    fields = SETS[name].fields.replace("FOLDER", str(out))
    print(f"python -m posattn_jax.main --config={SETS[name].config} --workdir=runs/NAME {fields}")


def _is_prepared(out: pathlib.Path) -> bool:
    """Whether a set is there, whole; InputError where something else is."""
    if not out.exists():
        return False
    try:
        reason = checksums.damage(out)
    except OSError:
        reason = f"it has no {checksums.FILE}"
    if reason is not None:
        raise InputError(f"{out} is there already, and is not as it was prepared ({reason}): move it away")
    return True


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the set")
    parser.add_argument("files", type=pathlib.Path, help="the folder of its official files")
    parser.add_argument("--out", type=pathlib.Path, help="where it is made; by default data/NAME")
    parser.add_argument("--download", action="store_true", help="fetches files that are missing")
    parser.add_argument("--partial", action="store_true", help="leaves out what is missing")
    options = parser.parse_args(argv[1:])
    try:
        prepare(options.name, options.files, options.out, options.download, options.partial)
    except OSError as error:  # a full disk names no file, a damaged .gz neither that nor an error of the system
        place = error.filename or options.out or pathlib.Path("data", options.name)
        raise RunError(f"{place}: {error.strerror or error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
