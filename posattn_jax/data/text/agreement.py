"""Made-up sentences whose tags depend on the order of the words only, near and far: no download.

A sentence is a subject, a verb and an object. Nouns, verbs and adjectives are drawn from the same words, so that no
word tells which of these it is. Phrases with prepositions may stand between the subject and its verb:

  these light even plans near a clean right under those plans double a last charge .
  DET   ADJ   ADJ  N-SUB PREP DET ADJ N-PRE PREP DET   N-PRE V-PL   DET ADJ N-OBJ END

A verb has the number of its subject, which only the first determiner tells, 2 to 12 words before it. A noun is the
subject or the object, by its side of the verb, or belongs to a preposition.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from posattn_jax.data.text.tagged import Tagged, TaggedSentence

# Each can be an adjective, a noun and a verb.
WORDS = (
    "blind calm clean clear close cool double dry empty even fancy last level light model open parallel present "
    "quiet right secure slow smooth square still subject total trim warm welcome"
)
OPEN = tuple(WORDS.split())
DETERMINERS = {"SG": ("a", "each", "this"), "PL": ("many", "these", "those")}
PREPOSITIONS = ("behind", "near", "under", "with")


@dataclasses.dataclass(frozen=True)
class Agreement(Tagged):
    """Sentences of the grammar. They depend only on `grammar_seed`, not on the seed of a run.

    Attributes:
      num_train, num_validation, num_test: the numbers of sentences.
      grammar_seed: the seed of the sentences.
      vocabulary_size, length, validation_limit: see `Tagged`.
    """

    vocabulary_size: int = 180  # every word is one piece
    length: int = 24
    num_train: int = 4000
    num_validation: int = 1000
    num_test: int = 1000
    grammar_seed: int = 0

    name: ClassVar[str] = "agreement"

    def __post_init__(self):
        super().__post_init__()
        for field in ("num_train", "num_validation", "num_test"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: expected 1 or more")
        if self.grammar_seed < 0:
            raise ValueError(f"grammar_seed={self.grammar_seed}: expected 0 or more")

    def read(self) -> dict[str, list[TaggedSentence]]:
        sizes = {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}
        rngs = {part: np.random.default_rng([self.grammar_seed, i]) for i, part in enumerate(sizes)}
        return {part: [sentence(rngs[part]) for _ in range(size)] for part, size in sizes.items()}


def sentence(rng: np.random.Generator) -> TaggedSentence:
    """A sentence of the grammar, of 6 to 22 words."""
    number = str(rng.choice(["SG", "PL"]))
    rows = _noun_phrase(rng, "N-SUB", number, 2)
    for _ in range(rng.integers(3)):
        rows += _prepositional_phrase(rng)
    rows += [(_one(rng, OPEN), f"V-{number}")]
    rows += _noun_phrase(rng, "N-OBJ", str(rng.choice(["SG", "PL"])), 2)
    if rng.integers(2):
        rows += _prepositional_phrase(rng)
    words, tags = zip(*rows, (".", "END"), strict=True)
    return TaggedSentence(words, tags)


def _noun_phrase(rng: np.random.Generator, tag: str, number: str, most: int) -> list[tuple[str, str]]:
    """A determiner, up to `most` adjectives, and a noun."""
    adjectives = [(_one(rng, OPEN), "ADJ") for _ in range(rng.integers(most + 1))]
    return [(_one(rng, DETERMINERS[number]), "DET"), *adjectives, (_one(rng, OPEN), tag)]


def _prepositional_phrase(rng: np.random.Generator) -> list[tuple[str, str]]:
    phrase = _noun_phrase(rng, "N-PRE", str(rng.choice(["SG", "PL"])), 1)
    return [(_one(rng, PREPOSITIONS), "PREP"), *phrase]


def _one(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[rng.integers(len(words))]
