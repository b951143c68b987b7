"""Text, parallel text and GLUE's files, made from a seed: for tests only."""

import pathlib

import numpy as np

NOUNS = [
    "cat",
    "dog",
    "house",
    "tree",
    "river",
    "stone",
    "bird",
    "child",
    "ship",
    "cloud",
    "garden",
    "window",
    "mountain",
]
VERBS = ["sees", "likes", "follows", "finds", "leaves", "paints", "carries", "hears", "remembers", "forgets"]


def sentences(seed: int, number: int) -> list[str]:
    """Of a small grammar: The cat sees a dog."""
    rng = np.random.default_rng(seed)

    def sentence() -> str:
        first, second = rng.choice(NOUNS, 2)
        return f"The {first} {rng.choice(VERBS)} {rng.choice(['a', 'the', 'no'])} {second}."

    return [sentence() for _ in range(number)]


def write_text(folder: pathlib.Path, number: int = 300) -> pathlib.Path:
    """Two files, with a blank line between documents of ten sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("a.txt", "b.txt")):
        lines = sentences(seed, number)
        text = "".join(f"{line}\n" + ("\n" if i % 10 == 9 else "") for i, line in enumerate(lines))
        (folder / name).write_text(text, encoding="utf-8")
    return folder


LANGUAGES = ("qa", "qb")


def translated(sentence: str) -> str:
    """Into another made-up language: every word but articles backwards, the last first."""
    words = sentence.removesuffix(".").split()
    return " ".join(word[::-1] for word in reversed(words) if word.lower() not in ("a", "the")) + "."


def write_parallel(folder: pathlib.Path, number: int = 120) -> pathlib.Path:
    """Parallel text, train.qa to test.qb: one to three sentences of the small grammar, joined, a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, part in enumerate(("train", "val", "test")):
        clauses, sizes = sentences(seed, 3 * number), np.random.default_rng(seed).integers(1, 4, number)
        lines = [
            " and ".join(clauses[3 * i : 3 * i + size]).replace(". and The", " and the") for i, size in enumerate(sizes)
        ]
        for language, side in zip(LANGUAGES, (lines, map(translated, lines)), strict=True):
            (folder / f"{part}.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return folder


def write_tsv(path: pathlib.Path, rows: list[tuple]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def write_rte(folder: pathlib.Path, number: int = 24) -> pathlib.Path:
    """RTE's three files, 21 examples in the last: the second sentence is the first, or is not."""
    for seed, part in enumerate(("train", "dev", "test")):
        first, other = sentences(seed, number), sentences(seed + 10, number)
        rows: list[tuple] = [("index", "sentence1", "sentence2", "label")]
        for i in range(number):
            pair = (first[i], first[i] if i % 2 else other[i])
            rows.append((i, *pair, ("not_entailment", "entailment")[i % 2]))
        write_tsv(folder / "RTE" / f"{part}.tsv", [row[:3] for row in rows[:22]] if part == "test" else rows)
    return folder


def write_mnli(folder: pathlib.Path, number: int = 24) -> pathlib.Path:
    """MNLI's five files, of which the mismatched ones have five examples."""
    labels = ("entailment", "neutral", "contradiction")
    for seed, part in enumerate(("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")):
        some = 5 if part.endswith("mismatched") else number
        first, second = sentences(seed, some), sentences(seed + 10, some)
        rows: list[tuple] = [("index", "sentence1", "sentence2", "gold_label")]
        rows += [(i, first[i], second[i], labels[i % 3]) for i in range(some)]
        write_tsv(folder / "MNLI" / f"{part}.tsv", [row[:3] for row in rows] if part.startswith("test") else rows)
    return folder


def write_columns(path: pathlib.Path, number: int = 60, seed: int = 0) -> pathlib.Path:
    """Sentences of the small grammar in the columns of CoNLL-2000: word, part of speech, chunk."""
    verbs, lines = set(VERBS), []
    for sentence in sentences(seed, number):
        for word in sentence.removesuffix(".").split():
            tag = "VERB" if word in verbs else "NOUN" if word in NOUNS else "DET"
            chunk = "B-VP" if tag == "VERB" else "B-NP" if tag == "DET" else "I-NP"
            lines.append(f"{word} {tag} {chunk}")
        lines += [". PUNCT O", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
