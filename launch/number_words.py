"""Writes numbers in words, in English, German and made-up languages: the data of configs/studies/question_cross.py.

  python launch/number_words.py TO

TO becomes PART.LANGUAGE for train (20,000 lines), val and test (1,000 lines each); see
posattn_jax/data/text/number_words.py.
"""

import argparse
import pathlib
import sys

from posattn_jax.data.text import number_words
from posattn_jax.system import command_line

SIZES = {"train": 20_000, "val": 1_000, "test": 1_000}


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path, metavar="TO")
    number_words.write(parser.parse_args(argv[1:]).target, SIZES, languages=("en", "de", *number_words.MADE_UP))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
