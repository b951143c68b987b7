"""The published data sets that our configs read: their official files, and the functions that make the sets from them.

SHA-256 sums are those of tensorflow-datasets (GLUE, ImageNet) and of the widely published archive (WikiText).
"""

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from posattn_jax.data.images import cifar, imagenet
from posattn_jax.data.official import files, glue_files, parallel_sets
from posattn_jax.data.official.files import OfficialFile, OfficialSet
from posattn_jax.system.doing import doing

WIKITEXT = "wikitext-103-raw-v1.zip"


def articles(lines: Iterable[str]) -> Iterator[list[str]]:
    """The sentences of each article, without headings. WikiText's " @-@ " becomes "-", and "<unk>" becomes "unk"."""
    article: list[str] = []
    has_begun = False
    for line in lines:
        line = re.sub(r" @(.)@ ", r"\1", line).replace("<unk>", "unk").strip()
        if re.fullmatch(r"= [^=].*[^=] =", line):
            if has_begun:
                yield article
            article, has_begun = [], True
        elif line and not line.startswith("="):
            article += re.split(r"(?<= [.?!]) (?![a-z])", line)
            has_begun = True
    if has_begun:
        yield article


def write_wikitext(there: Mapping[str, pathlib.Path], folder: pathlib.Path) -> dict[str, int]:
    """Writes train/ and validation/, with blank lines between articles; returns the number of sentences of each."""
    counts = {}
    for part, stem in (("train", "train"), ("validation", "valid")):
        path = folder / part / "wikitext103.txt"
        path.parent.mkdir()
        counts[part] = 0
        with doing(f"{part} from {WIKITEXT}", after=0.0), path.open("w", encoding="utf-8", newline="\n") as file:
            for article in articles(files.lines(there[WIKITEXT], f"wikitext-103-raw/wiki.{stem}.raw")):
                file.writelines(f"{sentence}\n" for sentence in (*article, ""))
                counts[part] += len(article)
    return counts


FACEBOOK = "https://dl.fbaipublicfiles.com/"
GLUE = {
    "CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
    "MNLI.zip": "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
    "QNLIv2.zip": "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
    "QQP.zip": "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
    "RTE.zip": "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
    "SST-2.zip": "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
    "STS-B.zip": "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
    "WNLI.zip": "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46",
    "mrpc_dev_ids.tsv": "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
    "AX.tsv": "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
}
MRPC = {
    "msr_paraphrase_train.txt": "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    "msr_paraphrase_test.txt": "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
}
IMAGENET = {
    "Imagenet64_train_part1_npz.zip": "9422dc1dc5d092e9814a70a1cb7fc74880d2db5d88a0cb8a34ee363b12bde3f1",
    "Imagenet64_train_part2_npz.zip": "9fafc115afb7e6c301e66dc16b2d737152b427bd5dab26e1293487a6819c7f30",
    "Imagenet64_val_npz.zip": "e1e75133158a1924135a9c6f97a80d2d237b158945e0b34074e58e6c8430eeb8",
}


SETS = parallel_sets.SETS | {
    "wikitext103": OfficialSet(
        "configs/bert.py:small",
        (
            OfficialFile(
                f"https://wikitext.smerity.com/{WIKITEXT}",
                "sha256:91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            ),
        ),
        write_wikitext,
        "--config.data.dir=FOLDER/train --config.data.validation_dir=FOLDER/validation",
    ),
    "glue": OfficialSet(
        "configs/glue.py",
        (
            *(OfficialFile(f"{FACEBOOK}glue/data/{name}", f"sha256:{digest}") for name, digest in GLUE.items()),
            *(
                OfficialFile(f"{FACEBOOK}senteval/senteval_data/{name}", f"sha256:{digest}")
                for name, digest in MRPC.items()
            ),
        ),
        glue_files.write,
    ),
    "cifar100": OfficialSet(
        "configs/translution.py:cifar100",
        (OfficialFile(cifar.URL + cifar.CIFAR100.binary.archive, f"md5:{cifar.CIFAR100.binary.md5}"),),
    ),
    "imagenet64": OfficialSet(
        "configs/translution.py:imagenet",
        tuple(OfficialFile(name, f"sha256:{digest}", page=imagenet.PAGE) for name, digest in IMAGENET.items()),
    ),
}
