"""Writes numbers in words, in English, German and made-up languages: the data of configs/studies/question_cross.py.

  python launch/number_words.py TO

TO becomes PART.LANGUAGE for train (20,000 lines), val and test (1,000 lines each); see
posattn_jax/data/text/number_words.py.
"""

import pathlib
import sys

from posattn_jax.data.text import number_words

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    languages = ("en", "de", *number_words.MADE_UP)
    sizes = {"train": 20_000, "val": 1_000, "test": 1_000}
    try:
        number_words.write(pathlib.Path(sys.argv[1]), sizes, languages=languages)
    except OSError as error:
        sys.exit(f"number_words: {error.filename}: {error.strerror}")
