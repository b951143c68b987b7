"""Official files of published sets, small and made: for tests only."""

import gzip
import io
import pathlib
import tarfile
import zipfile

import numpy as np


def write_tar(path: pathlib.Path, members: dict[str, bytes | str]) -> pathlib.Path:
    """A .tgz, or a .tar, of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tar:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_zip(path: pathlib.Path, members: dict[str, bytes | str]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return path


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def segments(lines: list[str]) -> str:
    """As IWSLT and WMT have test sets."""
    told = [f'<seg id="{i}"> {line} </seg>' for i, line in enumerate(lines, start=1)]
    return text(['<doc docid="1" genre="lectures">', "<title>no segment</title>", *told, "</doc>"])


TALKS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def write_iwslt14(folder: pathlib.Path, pairs: list[tuple[str, str]], tests: list[tuple[str, str]]) -> None:
    """Training lines as they are given; the test pairs are those of each of the five talks in turn."""
    members = {}
    for side, language in enumerate(("de", "en")):
        members[f"de-en/train.tags.de-en.{language}"] = text([pair[side] for pair in pairs])
        for number, name in enumerate(TALKS):
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = segments([tests[number][side]])
    write_tar(folder / "de-en.tgz", members)


def write_wmt14(folder: pathlib.Path, target: str, corpora: list[list[tuple[str, str]]], tests: list) -> None:
    """German has three corpora, French five."""

    def sides(stem: str, pairs: list[tuple[str, str]]) -> dict[str, bytes | str]:
        return {f"{stem}.{target}-en.{language}": text(list(side)) for language, side in both(pairs).items()}

    def both(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
        return {language: [pair[side] for pair in pairs] for side, language in enumerate(("en", target))}

    write_tar(folder / "training-parallel-europarl-v7.tgz", sides("training/europarl-v7", corpora[0]))
    write_tar(folder / "training-parallel-commoncrawl.tgz", sides("commoncrawl", corpora[1]))
    if target == "de":
        write_tar(folder / "training-parallel-nc-v12.tgz", sides("training/news-commentary-v12", corpora[2]))
    else:
        write_tar(folder / "training-parallel-un.tgz", sides("un/undoc.2000", corpora[2]))
        write_tar(folder / "training-parallel-nc-v9.tgz", sides("training/news-commentary-v9", corpora[3]))
        zipped = {
            f"giga-fren.release2.fixed.{each}.gz": gzip.compress(text(side).encode())
            for each, side in both(corpora[4]).items()
        }
        write_tar(folder / "training-giga-fren.tar", zipped)
    found, name = both(tests), f"test-full/newstest2014-{target}en"
    members = {f"{name}-src.en.sgm": segments(found["en"]), f"{name}-ref.{target}.sgm": segments(found[target])}
    write_tar(folder / "test-full.tgz", members)


def write_imagenet(path: pathlib.Path, batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """A zip of .npz files of planar pixels [n, 12288] and labels from 1."""
    members = {}
    for name, (images, labels) in batches.items():
        buffer = io.BytesIO()
        planes = np.moveaxis(images, -1, 1).reshape(len(images), -1)
        np.savez(buffer, data=planes, labels=labels + 1, mean=planes.mean(axis=0))
        members[name] = buffer.getvalue()
    write_zip(path, members)
