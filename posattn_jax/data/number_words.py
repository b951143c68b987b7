"""Numbers in English and German words, a parallel text that needs no download: "forty-two", "zweiundvierzig"."""

import pathlib

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


def write(folder: pathlib.Path, sizes: dict[str, int], seed: int = 0) -> None:
    """Writes PART.en and PART.de with `sizes[PART]` lines each. A line is one to four random numbers."""
    rng = np.random.default_rng(seed)
    for part, size in sizes.items():
        lines = [rng.integers(0, 1000, rng.integers(1, 5)).tolist() for _ in range(size)]
        for language in SMALL:
            text = "".join(" ".join(words(number, language) for number in line) + "\n" for line in lines)
            write_text(folder / f"{part}.{language}", text)
