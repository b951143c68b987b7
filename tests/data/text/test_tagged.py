"""Sentences with tags: files with columns, what they become, and the made-up grammar."""

import numpy as np
import pytest

from posattn_jax.data.pipeline import user_data
from posattn_jax.data.pipeline.data_set import Reading
from posattn_jax.data.text import agreement
from posattn_jax.data.text.agreement import OPEN, PREPOSITIONS, Agreement
from posattn_jax.data.text.tagged import TaggedFiles, TaggedSequences, read_columns
from posattn_jax.data.tokenizers import tokenizer
from posattn_jax.system.errors import InputError
from tests.support.made_text import sentences, write_columns

CONLL_2000 = "He PRP B-NP\nreckons VBZ B-VP\n# # B-NP\n1.8 CD I-NP\n. . O\n\nNo DT O\n"
CONLL_2003 = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n-DOCSTART- -X- -X- O\n\nYes UH O O\n\n"
UNIVERSAL = """# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tgone\tgo\tVERB\t_\t_\t_\t_\t_\t_
3\tal mar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
"""


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "name, text, columns, expected",
    [
        ("a.txt", CONLL_2000, (), [("He reckons # 1.8 .", "B-NP B-VP B-NP I-NP O"), ("No", "O")]),
        ("a.txt", CONLL_2000.replace("\n", "\r\n"), (0, 1), [("He reckons # 1.8 .", "PRP VBZ # CD ."), ("No", "DT")]),
        ("a.conll", CONLL_2003, (), [("EU rejects", "B-ORG O"), ("Yes", "O")]),
        ("a.conll", "\ufeffa\tX\nb\tY", (), [("a b", "X Y")]),
        ("a.conll", "10\u00a0000  CD\nmen NNS\n", (), [("10\u00a0000 men", "CD NNS")]),
        ("a.conllu", UNIVERSAL, (), [("vamos nos al mar", "VERB PRON NOUN")]),
        ("a.conllu", UNIVERSAL, (2, -3), [("ir nosotros mar", "root obj obl")]),
    ],
)
def test_columns(tmp_path, name, text, columns, expected):
    found = list(read_columns(write(tmp_path / name, text), columns))
    assert [(" ".join(each.words), " ".join(each.tags)) for each in found] == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("a X\nb\nc Z\n\nd Y\n", "line 2: 1 columns, expected 2"),
        ("a X\nb Y Z\n\nd Y\n", "line 2: 3 columns, expected 2"),
        (b"a X\n\xff Y\n\nd Y\n", "line 2: is no UTF-8"),
        ("a\tX\nb\t\n\nd\tY\n", "line 2: the tag is empty"),
        ("a\tX\n \tY\n\nd\tY\n", "line 2: the word is empty"),
    ],
)
def test_malformed_sentences_are_told_and_may_be_skipped(tmp_path, capsys, text, message):
    path = write(tmp_path / "train.txt", text)
    wrong, good = read_columns(path)
    assert str(wrong) == f"{path}: {message}" and good.words == ("d",)
    with pytest.raises(InputError, match=f"{message} .*malformed sentences: 1, "):
        TaggedFiles(dir=str(tmp_path)).read()
    assert [each.words for each in TaggedFiles(dir=str(tmp_path), malformed="skip").read()["train"]] == [("d",)]
    assert "left out: 1, next to 1" in capsys.readouterr().out


def test_a_line_without_the_number_of_a_word_is_malformed(tmp_path):
    path = write(tmp_path / "a.conllu", "# text\n1-2\tal\t_\t_\n1\ta\t_\tADP\nx\tel\t_\tDET\n\n1\tmar\t_\tNOUN\n")
    wrong, good = read_columns(path)
    assert str(wrong) == f'{path}: line 4: "x": expected the number of a word' and good.words == ("mar",)


def test_what_cannot_be_read(tmp_path, unchecked):
    with pytest.raises(InputError, match=r"line 1 has 2 columns: .*0 and 2"):
        list(read_columns(write(tmp_path / "a.txt", "a X\n"), (0, 2)))
    with pytest.raises(InputError, match=r"line 1 has 1 columns"):
        list(read_columns(write(tmp_path / "a.txt", "a\n")))
    with pytest.raises(InputError, match="nothing to train on"):
        TaggedFiles(dir=str(tmp_path)).read()
    with pytest.raises(ValueError, match=r"columns=.0,."):
        TaggedFiles(columns=(0,))
    with pytest.raises(ValueError, match="num_test=0: expected 1 or more"):
        Agreement(num_test=0)
    with pytest.raises(ValueError, match="grammar_seed=-1: expected 0 or more"):
        Agreement(grammar_seed=-1)
    with pytest.raises(ValueError, match="vocabulary_size=4"):
        Agreement(vocabulary_size=4)


def test_parts_of_a_folder(tmp_path, capsys):
    """A tag that the train part does not have is malformed, and a fifth is the validation part if there is none."""
    write_columns(tmp_path / "train.txt", 50)
    alone = TaggedFiles(dir=str(tmp_path), vocabulary_size=60).load(Reading(1))
    assert {part: len(each) for part, each in alone.items()} == {"train": 40, "validation": 10}
    assert alone["train"].names == ("B-NP", "B-VP", "I-NP", "O")
    write_columns(tmp_path / "dev.txt", 5, seed=1)
    test = write_columns(tmp_path / "test.txt", 5, seed=2)
    data = TaggedFiles(dir=str(tmp_path), vocabulary_size=60, columns=(0, 1), validation_limit=3)
    parts = data.load(Reading(1, evaluates=True))
    assert {part: len(each) for part, each in parts.items()} == {"train": 50, "validation": 3, "test": 5}
    assert parts["test"].names == ("DET", "NOUN", "PUNCT", "VERB") and len(data.files()) == 3
    test.write_text("Oh UH O\n")
    with pytest.raises(InputError, match='test.txt: line 1: label "UH": .*DET, NOUN'):
        data.load(Reading(1, evaluates=True))
    write(tmp_path / "train.txt", "a X\nb X\n")
    with pytest.raises(InputError, match="classes: 1"):
        TaggedFiles(dir=str(tmp_path)).load(Reading(1))


@pytest.fixture(scope="module")
def subwords():
    return tokenizer.train(sentences(0, 300), 50)


def test_a_tag_is_at_the_first_piece_of_its_word(subwords):
    words = ["The", "mountainous", "sees", "\u200b", "."]
    source = TaggedSequences([], tuple("abcde"), 16, subwords).of([(words, [0, 1, 2, 3, 4]), (["a"], [1])])
    batch = source.batch(np.arange(2))
    pieces = [subwords.encode([word])[0] for word in words]
    assert len(pieces[1]) > 1 and not len(pieces[3])
    pieces[3] = [subwords.specials.mask]  # it is dropped by the tokenizer, and keeps its tag
    tokens, targets = [subwords.specials.cls], [-1]
    for tag, ids in enumerate(pieces):
        tokens += list(ids)
        targets += [tag] + [-1] * (len(ids) - 1)
    room = 14
    assert batch["tokens"][0].tolist() == [*tokens[: room + 1], subwords.specials.sep] + [0] * max(0, 14 - len(tokens))
    np.testing.assert_array_equal(batch["targets"][0], (targets[: room + 1] + [-1] * 16)[:16])
    assert batch["targets"][1].tolist()[:2] == [-1, 1] and set(batch["targets"][1].tolist()[2:]) == {-1}
    assert source.num_cut == (len(tokens) - 1 > room)
    whole = np.concatenate(subwords.encode([" ".join(words[:3])]))
    np.testing.assert_array_equal(np.concatenate(pieces[:3]), whole)


def parse(words):
    """The tags of a sentence, by the position of its words only."""
    number, tags = None, []
    for i, word in enumerate(words):
        last = words[i + 1] not in OPEN if i + 1 < len(words) else True
        is_determiner = [word in each for each in agreement.DETERMINERS.values()]
        if any(is_determiner):
            number = number or ("SG" if is_determiner[0] else "PL")
            tags.append("DET")
            where = "PRE" if i and words[i - 1] in PREPOSITIONS else "OBJ" if f"V-{number}" in tags else "SUB"
        elif word in PREPOSITIONS:
            tags.append("PREP")
        elif word == ".":
            tags.append("END")
        elif f"V-{number}" in tags:
            tags.append(f"N-{where}" if last else "ADJ")
        else:  # the run of words before the object's determiner ends with the verb
            end = next(j for j in range(i, len(words)) if words[j] not in OPEN)
            has_verb = words[end] not in PREPOSITIONS
            tags.append(
                f"V-{number}" if has_verb and i + 1 == end else f"N-{where}" if i + 1 + has_verb == end else "ADJ"
            )
    return tags


def test_tags_of_the_grammar_follow_from_the_order_of_words():
    rng, sizes = np.random.default_rng(0), set()
    distances = set()
    for _ in range(2000):
        words, tags, _ = agreement.sentence(rng)
        assert list(tags) == parse(words)
        sizes.add(len(words))
        distances.add(next(i for i, tag in enumerate(tags) if tag.startswith("V-")))
    assert sizes == set(range(6, 23)) and min(distances) == 2 and max(distances) == 12


def test_sentences_of_the_grammar_are_the_same_for_every_seed(tmp_path):
    data = Agreement(num_train=400, num_validation=5, num_test=7)
    parts, again = (data.load(Reading(seed, evaluates=True)) for seed in (1, 2))
    assert {part: len(each) for part, each in parts.items()} == {"train": 400, "validation": 5, "test": 7}
    np.testing.assert_array_equal(*(each["train"].batch(np.arange(9))["tokens"] for each in (parts, again)))
    assert parts["train"].num_cut == 0 and not data.files()
    parts["train"].save(tmp_path)
    assert user_data.of_run(tmp_path)["classes"] == list(parts["train"].names) == list(data.empty(tmp_path).names)
