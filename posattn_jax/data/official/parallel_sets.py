"""The translations that our configs read, IWSLT14, WMT14 and WMT18, and the official files from which they are made.

The files of IWSLT14 and WMT14, and their order, are those of the scripts of Schmidt 2023, which are fairseq's. For
WMT18, the paper names only the year and the test set, so these are the files that WMT18 provides for the pair. SHA-256
sums are those of tensorflow-datasets, MD5 sums those of sacreBLEU.
"""

import functools
from collections.abc import Callable

from posattn_jax.data.official import parallel_text
from posattn_jax.data.official.files import OfficialFile, OfficialSet
from posattn_jax.data.official.parallel_text import Part

STATMT, STATMT_DATA = "https://statmt.org/", "https://data.statmt.org/"
TFDS = "https://storage.googleapis.com/tfds-data/downloads/"
CWMT_PAGE = "http://nlp.nju.edu.cn/cwmt-wmt/"

TALKS = OfficialFile("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
EUROPARL = OfficialFile(
    f"{STATMT}wmt13/training-parallel-europarl-v7.tgz",
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
CRAWL = OfficialFile(
    f"{STATMT}wmt13/training-parallel-commoncrawl.tgz",
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS_9 = OfficialFile(
    f"{STATMT}wmt14/training-parallel-nc-v9.tgz",
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
NEWS_12 = OfficialFile(
    f"{STATMT_DATA}wmt17/translation-task/training-parallel-nc-v12.tgz",
    "sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
)
NEWS_13 = OfficialFile(
    f"{STATMT_DATA}wmt18/translation-task/training-parallel-nc-v13.tgz",
    "sha256:17992b7e919cfb754c60f4e754148bc23b80706ad0ed7b34150831a554b40c91",
)
UN_FRENCH = OfficialFile(
    f"{STATMT}wmt13/training-parallel-un.tgz", "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47"
)
GIGA = OfficialFile(
    f"{STATMT}wmt10/training-giga-fren.tar", "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a"
)
TEST_2014 = OfficialFile(f"{STATMT}wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a")
TEST_2017 = OfficialFile(f"{STATMT_DATA}wmt17/translation-task/test.tgz", "md5:86a1724c276004aa25455ae2a04cef26")
UN_CHINESE = OfficialFile(
    f"{TFDS}uncorpus/UNv1.0.en-zh.tar.gz", "sha256:6f9c6401d5f0a49b20661324570d99fb86822d82f974748a361e19b9b886dd49"
)
CWMT = tuple(
    OfficialFile(f"{name}.zip", page=CWMT_PAGE)
    for name in ("casia2015", "casict2011", "casict2015", "datum2015", "datum2017", "neu2017")
)


def _corpus(file: OfficialFile, pattern: str, *languages: str) -> tuple[str, str, str]:
    """The name of a file, and the pattern of each language, from a pattern with LANGUAGE in it."""
    source, target = (pattern.replace("LANGUAGE", language) for language in languages)
    return file.name, source, target


def _translations(languages: tuple[str, str], *parts: Part) -> Callable:
    return functools.partial(parallel_text.write, languages, parts)


def _wmt(
    config: str,
    languages: tuple[str, str],
    training: list[tuple],
    clean: Callable,
    test: tuple[OfficialFile, str, str, str, int],
) -> OfficialSet:
    """The translations of a year of WMT.

    Args:
      config: the config that reads them.
      languages: those of source and target.
      training: (file, pattern) for each corpus, and the names of the languages in it if they are different.
      clean: the function that cleans the training lines.
      test: the file, the folder in it, the name of the test set, its name of the pair, and the number of pairs.
    """
    file, folder, name, pair, num_pairs = test
    source, target = languages
    tested = _corpus(file, f"{folder}/{name}-{pair}-LANGUAGE.sgm", f"src.{source}", f"ref.{target}")
    return OfficialSet(
        config,
        (*(each for each, *_ in training), file),
        _translations(
            languages,
            Part("train", [_corpus(each, pattern, *(own or languages)) for each, pattern, *own in training], clean),
            Part(name, [tested], parallel_text.segments, num_pairs=num_pairs),
        ),
        needs=("sacremoses",) if clean is parallel_text.normalised else (),
    )


SETS = {
    "iwslt14": OfficialSet(
        "configs/nmt.py:iwslt14",
        (TALKS,),
        _translations(
            ("de", "en"),
            Part(
                "train",
                [_corpus(TALKS, "de-en/train.tags.de-en.LANGUAGE", "de", "en")],
                parallel_text.talks,
                parallel_text.of_similar_length,
                num_pairs=167_522,  # fairseq's 160,239 for training and 7,283 (every 23rd) for validation
            ),
            Part(
                "test",
                [
                    _corpus(TALKS, f"de-en/IWSLT14.{name}.de-en.LANGUAGE.xml", "de", "en")
                    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
                ],
                parallel_text.segments,
                num_pairs=6750,
            ),
        ),
        needs=("sacremoses",),
    ),
    "wmt14_en_de": _wmt(
        "configs/nmt.py:wmt14_en_de",
        ("en", "de"),
        [
            (EUROPARL, "training/europarl-v7.de-en.LANGUAGE"),
            (CRAWL, "commoncrawl.de-en.LANGUAGE"),
            (NEWS_12, "training/news-commentary-v12.de-en.LANGUAGE"),
        ],
        parallel_text.normalised,
        (TEST_2014, "test-full", "newstest2014", "deen", 3003),
    ),
    "wmt14_en_fr": _wmt(
        "configs/nmt.py:wmt14_en_fr",
        ("en", "fr"),
        [
            (EUROPARL, "training/europarl-v7.fr-en.LANGUAGE"),
            (CRAWL, "commoncrawl.fr-en.LANGUAGE"),
            (UN_FRENCH, "un/undoc.2000.fr-en.LANGUAGE"),
            (NEWS_9, "training/news-commentary-v9.fr-en.LANGUAGE"),
            (GIGA, "giga-fren.release2.fixed.LANGUAGE.gz"),
        ],
        parallel_text.normalised,
        (TEST_2014, "test-full", "newstest2014", "fren", 3003),
    ),
    "wmt18_en_zh": _wmt(
        "configs/nmt.py:wmt18_en_zh",
        ("en", "zh"),
        [
            (NEWS_13, "training-parallel-nc-v13/news-commentary-v13.zh-en.LANGUAGE"),
            (UN_CHINESE, "en-zh/UNv1.0.en-zh.LANGUAGE"),
            *((file, f"{file.name[:-4]}/*_LANGUAGE.txt", "en", "c[hn]") for file in CWMT),
        ],
        parallel_text.printable,
        (TEST_2017, "test", "newstest2017", "enzh", 2001),
    ),
}
