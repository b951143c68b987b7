"""Numbers in English and German words, and in made-up languages: parallel texts that need no download.

The words of a made-up language are English words spelled backwards: "forty-two" is "ytrof owt". Its rule decides how
the words of a line are ordered and repeated, so it decides what a translation has to know."""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from posattn_jax.system.files import write_text

SMALL = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
}
TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
}

# The words of a line [English] -> those of the made-up language, before each is spelled backwards.
MADE_UP: dict[str, Callable[[list[str]], list[str]]] = {
    "monotone": list,
    "repeated": lambda said: [word for word in said for _ in range(1 + len(word) % 3)],  # one to three times
    "reversed": lambda said: said[::-1],
    "sorted": sorted,
}


def words(number: int, language: str) -> str:
    """A number from 0 to 999 in words. German has units before tens: 742 is siebenhundert zweiundvierzig."""
    if not 0 <= number < 1000 or language not in SMALL:
        raise ValueError(f'number={number}, language="{language}": expected 0 to 999, and "en" or "de"')
    hundreds, rest = divmod(number, 100)
    small, tens = SMALL[language].split(), TENS[language].split()
    said = []
    if hundreds:
        said.append(f"{small[hundreds]} hundred" if language == "en" else f"{_joined(small[hundreds])}hundert")
    if 0 < rest < 20 or not number:
        said.append(small[rest])
    elif rest:
        unit, ten = small[rest % 10], tens[rest // 10 - 2]
        if language == "en":
            said.append(f"{ten}-{unit}" if rest % 10 else ten)
        else:
            said.append(f"{_joined(unit)}und{ten}" if rest % 10 else ten)
    return " ".join(said)


def _joined(unit: str) -> str:
    """The form of a German unit before another word."""
    return "ein" if unit == "eins" else unit


def line(numbers: Sequence[int], language: str) -> str:
    """Numbers in the words of a language, "en", "de" or one of `MADE_UP`."""
    if language in MADE_UP:
        english = line(numbers, "en").replace("-", " ").split()
        return " ".join(word[::-1] for word in MADE_UP[language](english))
    return " ".join(words(number, language) for number in numbers)


def write(folder: pathlib.Path, sizes: dict[str, int], seed: int = 0, languages: Sequence[str] = ("en", "de")) -> None:
    """Writes PART.LANGUAGE with `sizes[PART]` lines for each language. A line is one to four random numbers."""
    rng = np.random.default_rng(seed)
    for part, size in sizes.items():
        lines = [rng.integers(0, 1000, rng.integers(1, 5)).tolist() for _ in range(size)]
        for language in languages:
            write_text(folder / f"{part}.{language}", "".join(f"{line(each, language)}\n" for each in lines))
