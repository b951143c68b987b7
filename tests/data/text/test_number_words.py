"""Numbers in words."""

import pytest

from posattn_jax.data.text import number_words


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (42, "forty-two", "zweiundvierzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhundert eins"),
        (730, "seven hundred thirty", "siebenhundert dreißig"),
        (999, "nine hundred ninety-nine", "neunhundert neunundneunzig"),
    ],
)
def test_words(number, english, german):
    assert (number_words.words(number, "en"), number_words.words(number, "de")) == (english, german)


def test_every_number_has_words_of_its_own():
    for language in ("en", "de"):
        assert len({number_words.words(number, language) for number in range(1000)}) == 1000


@pytest.mark.parametrize("number, language", [(-1, "en"), (1000, "de"), (3, "fr")])
def test_others_are_refused(number, language):
    with pytest.raises(ValueError, match=f'number={number}, language="{language}"'):
        number_words.words(number, language)


@pytest.mark.parametrize(
    "language, expected",
    [
        ("monotone", "eerht derdnuh ytrof owt orez"),
        ("repeated", "eerht eerht eerht derdnuh derdnuh ytrof ytrof ytrof owt orez orez"),
        ("reversed", "orez owt ytrof derdnuh eerht"),
        ("sorted", "ytrof derdnuh eerht owt orez"),
    ],
)
def test_made_up_languages(language, expected):
    assert number_words.line([342, 0], language) == expected


def test_files(tmp_path):
    number_words.write(tmp_path, {"train": 30, "val": 3})
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.iterdir()}
    assert {name: len(text) for name, text in lines.items()} == {
        "train.en": 30,
        "train.de": 30,
        "val.en": 3,
        "val.de": 3,
    }
    assert not set(lines["val.en"]) & set(lines["train.en"])
    number_words.write(tmp_path / "more", {"val": 3, "train": 30}, languages=("en", "sorted"))
    assert {path.name for path in (tmp_path / "more").iterdir()} == {"val.en", "val.sorted", "train.en", "train.sorted"}
    number_words.write(tmp_path / "again", {"train": 30, "val": 3})
    assert (tmp_path / "again" / "val.de").read_text(encoding="utf-8").splitlines() == lines["val.de"]
