"""Works off a list of sweeps for some minutes, and brings back what came of it: see `launch/gpu_slice.sh`.

  launch/gpu_slice.sh --minutes=11 --out=FOLDER [--data=FOLDER] LIST
  launch/gpu_slice.sh --take=FOLDER
  launch/gpu_slice.sh --check LIST

LIST is a text file, in the order of value, with the options of one sweep in each line:

  --config=configs/digits.py --workdir=digits_long --treatments=siren_2d,span_2d --vmap_seeds=5   # 4 minutes

The workdir is the sweep's name. A value that begins with DATA/ is below the folder of --data. The first command goes
on with the runs in WORK/NAME (--work, runs/slices), and does not repeat those that are in RESULTS/NAME/runs.jsonl
(--results, docs/results). It writes:

  OUT/finished_0.tar.gz ...    the finished runs, as NAME/TREATMENT/SEED, with what a report reads; each NAME/sweep.json
  OUT/unfinished_0.tar.gz ...  the other runs with their checkpoints, in what the finished ones leave of --parts files
  OUT/programs.tar.gz          the programs that took a second or more to compile, newest first

No file is larger than --part_mib. A run that does not fit is named. OUT is written every minute (--every, in seconds)
and at the end; 30 seconds before the end the runs are asked to save. The second command, on any machine, joins the
finished runs with those in RESULTS, makes the reports again, and puts the unfinished ones and the programs into WORK,
where the next slice goes on. Programs are machine code: take only what comes from a machine that you trust. It deletes
nothing. To take the same folder again changes nothing. The third command says which sweeps of the list could not start,
whatever their data are: before a machine is paid for. Exit codes: 0 done or out of time, 1 a sweep failed, 2 wrong
input, 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import gzip
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from flax.traverse_util import flatten_dict

from posattn_jax.analysis import report
from posattn_jax.analysis.plan import read_plan
from posattn_jax.analysis.runs import runs_file
from posattn_jax.analysis.runs.run_folders import read_runs, span_arrays
from posattn_jax.sweeps.jobs import is_finished
from posattn_jax.system import command_line
from posattn_jax.system.errors import InputError
from posattn_jax.system.files import OF_THE_PLACE, checkpoint_steps, read_json, write_atomically, write_text
from posattn_jax.system.processes import child_environment, signals

DATA = "DATA/"
WORK, RESULTS = pathlib.Path("runs/slices"), pathlib.Path("docs/results")  # the defaults
SECONDS_TO_SAVE = 30.0  # before the end: then the runs are stopped
FINISHED, UNFINISHED = "finished", "unfinished"  # the names of their files, before _0.tar.gz
PROGRAMS = "programs.tar.gz"
OF_PROGRAMS = ".programs"  # in WORK
SECONDS_TO_WRITE = 5.0  # a compiled program that is younger may be half-written
MIB = 2**20
END = gzip.compress(bytes(2 * tarfile.BLOCKSIZE), mtime=0)  # of an archive


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A line of the list: the sweep's name, and its options but the workdir. A sweep may have several lines."""

    name: str
    options: tuple[str, ...]

    @property
    def config(self) -> list[str]:
        """The options that make the config."""
        return sorted(option for option in self.options if option.startswith("--config"))

    @property
    def command(self) -> str:
        """The command of this sweep for people."""
        return shlex.join(["python", "-m", "posattn_jax.main", "--mode=sweep", f"--workdir={self.name}", *self.options])


def _words(line: str) -> list[str]:
    """The words of a line, as a shell's: a # at the beginning of a word, outside quotes, begins a comment."""
    for start in (match.start() for match in re.finditer(r"(?<!\S)#", line)):
        with contextlib.suppress(ValueError):  # a quote is open: the # is in it
            return shlex.split(line[:start])
    return shlex.split(line)


def read_list(path: pathlib.Path) -> list[Sweep]:
    """The sweeps of a list. Raises InputError, with the line's number, where one cannot be run."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a list of sweeps ({error})") from error
    sweeps: list[Sweep] = []
    for number, line in enumerate(lines, start=1):
        try:
            words = _words(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number}: {error}") from error
        if not words:
            continue
        if wrong := next((word for word in words if not re.fullmatch(r"--[\w.]+=.*", word)), None):
            raise InputError(f"{path}: line {number}: {wrong}: expected --name=value")
        found = {flag: command_line.last_value(words, flag) for flag in ("config", "workdir", "mode", "finished")}
        name = found["workdir"]
        if not found["config"] or not name:
            raise InputError(f"{path}: line {number}: expected --config=FILE and --workdir=NAME")
        if found["mode"] or found["finished"]:
            raise InputError(f"{path}: line {number}: expected no --mode and no --finished, which are set for it")
        if pathlib.PurePath(name).parts != (name,) or name.startswith("."):
            raise InputError(f"{path}: line {number}: --workdir={name}: expected a name without folders")
        sweep = Sweep(name, tuple(word for word in words if not word.startswith("--workdir=")))
        if any(name == each.name and sweep.config != each.config for each in sweeps):
            raise InputError(
                f"{path}: line {number}: --workdir={name}: expected the config of its other line, or another name"
            )
        if any(sweep.options == each.options for each in sweeps):
            raise InputError(f"{path}: line {number}: --workdir={name}: expected other options than in the lines above")
        sweeps.append(sweep)
    if not sweeps:
        raise InputError(f"{path}: has no sweep")
    return sweeps


def check(sweeps: Sequence[Sweep], work: pathlib.Path, results: pathlib.Path) -> None:
    """Raises InputError if a sweep would not start, given what is in these folders. The data are not looked at."""

    def reason(sweep: Sweep) -> str | None:
        command = [*_command(sweep, work, results, pathlib.Path(DATA)), "--check"]
        result = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
        said = result.stderr.strip().rpartition("\n")[2].removeprefix("posattn_jax: error: ")
        return f"{sweep.name}: {said}" if result.returncode else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if reasons := [each for each in pool.map(reason, sweeps) if each]:
            raise InputError("; ".join(reasons))


def work_off(
    sweeps: Sequence[Sweep],
    end: float,
    work: pathlib.Path,
    results: pathlib.Path,
    data: pathlib.Path | None,
    packer: "Packer",
    every: float,
) -> int:
    """Runs the sweeps one after the other until `end` (of `time.monotonic`); packs what comes of them.

    Args:
      sweeps: the sweeps, in the order of value.
      end: when the runs are asked to save.
      work, results, data: the folders of the module's docstring.
      packer: what packs.
      every: the seconds from one packing to the next.

    Returns:
      0, or 1 if a sweep failed; 130 or 143 if a signal stopped it.
    """
    stopped_by: list[int] = []
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    failed, packed = [], time.monotonic()
    environment = child_environment() | {"JAX_COMPILATION_CACHE_DIR": str(packer.programs.resolve())}
    with signals({signum: lambda signum, _: stopped_by.append(signum) for signum in handled}):
        for sweep in sweeps:
            if stopped_by or time.monotonic() > end:
                break
            command, is_told = _command(sweep, work, results, data), False
            process = subprocess.Popen(command, env=environment, start_new_session=True)
            try:
                while process.poll() is None:
                    now = time.monotonic()
                    if not is_told and (stopped_by or now > end):
                        process.terminate()  # its runs save
                        is_told = True
                    if now > end + SECONDS_TO_SAVE:
                        print(f"{sweep.name}: is still saving, and goes on alone", file=sys.stderr)
                        break
                    if now - packed > every:
                        _try_to_pack(packer)
                        packed = time.monotonic()
                    time.sleep(0.2)
            except BaseException:
                process.terminate()
                process.wait()
                raise
            if process.returncode and not is_told:
                failed.append(f"{sweep.name} (exit code {process.returncode})")
    for line in packer.pack():
        print(line)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 128 + stopped_by[0] if stopped_by else int(bool(failed))


def _try_to_pack(packer: "Packer") -> None:
    """Packs while the runs go on; if that fails, the next time may be better."""
    try:
        packer.pack()
    except (OSError, InputError) as error:
        print(f"not packed: {error}", file=sys.stderr)


def _command(sweep: Sweep, work: pathlib.Path, results: pathlib.Path, data: pathlib.Path | None) -> list[str]:
    options = list(sweep.options)
    for i, option in enumerate(options):
        flag, equals, value = option.partition("=")
        if value.startswith(DATA):
            if data is None:
                raise InputError(f"--data=FOLDER is missing: {sweep.name} has {option}")
            options[i] = f"{flag}{equals}{data / value.removeprefix(DATA)}"
    if (results / sweep.name / runs_file.NAME).exists():
        options.append(f"--finished={results / sweep.name}")
    return [sys.executable, "-m", "posattn_jax.main", "--mode=sweep", f"--workdir={work / sweep.name}", *options]


@dataclasses.dataclass
class Packer:
    """Writes the runs of some sweeps as few files.

    Attributes:
      sweeps: the sweeps.
      work: the folder of their folders.
      out: where the files are written.
      data: the folder of the data, whose place is not told.
      parts, part_mib: the largest number of files with runs, and the size of each.
      known: NAME/TREATMENT/SEED of the runs that are in the results, and are left out.
      places: the number of the file that each finished and each unfinished run is in. It stays there while it fits.
      compiled: the names and sizes of the programs that were written.
    """

    sweeps: Sequence[Sweep]
    work: pathlib.Path
    out: pathlib.Path
    data: pathlib.Path | None
    parts: int
    part_mib: float
    known: frozenset[str] = frozenset()
    places: dict[str, dict[str, int]] = dataclasses.field(default_factory=lambda: {FINISHED: {}, UNFINISHED: {}})
    compiled: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def programs(self) -> pathlib.Path:
        """The folder of compiled programs."""
        return self.work / OF_PROGRAMS

    def pack(self) -> list[str]:
        """Writes all files, the finished runs first. Returns a line for each sweep and each run that is left out."""
        told, finished, unfinished = [], dict[str, bytes](), dict[str, bytes]()
        for name in dict.fromkeys(sweep.name for sweep in self.sweeps):
            folder = self.work / name
            if not (folder / "sweep.json").exists():
                continue
            plan, _ = read_plan(folder / "sweep.json")
            commands = [sweep.command for sweep in self.sweeps if sweep.name == name]  # they say no place
            how = {"plan": dataclasses.asdict(plan), "commands": commands}
            finished[name] = _compressed(name, [("sweep.json", json.dumps(how).encode())])
            number, left = 0, 0
            for run in sorted(path.parent for path in folder.glob("*/*/config.json")):
                place = f"{name}/{run.parent.name}/{run.name}"
                if place in self.known:
                    continue
                train = read_json(run / "config.json")["train"]
                if is_finished(run, train["total_steps"], train["total_epochs"], plan.evaluate):
                    number += 1
                    files = _files(run, ("checkpoints", "events", "figures"))
                    finished[place] = _compressed(
                        place, ((path, self._for_a_report(path, each)) for path, each in files)
                    )
                    continue
                left += 1
                if not any((run / "checkpoints").glob("[0-9]*")):
                    continue  # it begins again
                packed = _packed(run, place)
                if packed is None:
                    told.append(f"{place}: left out, it changes all the time")
                else:
                    unfinished[place] = packed
            told.append(f"{name}: {number} runs finished, {left} not")
        told += self._write_parts(FINISHED, finished, self.parts)
        told += self._write_parts(UNFINISHED, unfinished, self.parts - len({*self.places[FINISHED].values()}))
        self._write_programs()
        return told

    def _write_parts(self, kind: str, runs: dict[str, bytes], parts: int) -> list[str]:
        """Writes runs into at most `parts` files. A run that moves is in its new file before it leaves the old one."""
        room, told = [int(self.part_mib * MIB) - len(END)] * parts, []
        before, places, sources = self.places[kind], dict[str, int](), set()
        for name, part in before.items():
            if name in runs and part < parts and room[part] >= len(runs[name]):
                places[name] = part
                room[part] -= len(runs[name])
            elif name in runs:
                sources.add(part)
        for name, content in runs.items():
            if name in places:
                continue
            free = (i for i in range(parts) if room[i] >= len(content) and not (name in before and i in sources))
            part = next(free, None)
            if part is None:
                told.append(f"{name}: left out, its {len(content) / MIB:.1f} MiB do not fit")
            else:
                places[name] = part
                room[part] -= len(content)
        self.places[kind] = places
        for part in sorted(range(self.parts), key=lambda part: part in sources):
            inside = [runs[name] for name, i in places.items() if i == part]
            path = self.out / f"{kind}_{part}.tar.gz"
            if inside or (kind == FINISHED and part == 0):  # which tells that it is a slice
                write_atomically(path, lambda file, inside=inside: file.write(b"".join((*inside, END))))
            else:
                path.unlink(missing_ok=True)
        return told

    def _write_programs(self) -> None:
        """Writes the newest compiled programs that fit, if there are others than before."""
        room, chosen = int(self.part_mib * MIB) - tarfile.RECORDSIZE, dict[str, int]()
        files = {path: path.stat() for path in self.programs.glob("*-cache")}
        for path, stat in sorted(files.items(), key=lambda item: item[1].st_mtime, reverse=True):
            takes = stat.st_size + 2 * tarfile.BLOCKSIZE  # with its header and padding
            if takes <= room and time.time() - stat.st_mtime > SECONDS_TO_WRITE:
                room -= takes
                chosen[path.name] = stat.st_size
        if chosen != self.compiled:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
                for name in chosen:
                    path = self.programs / name
                    _add(archive, name, path.read_bytes(), files[path].st_mtime)
            write_atomically(self.out / PROGRAMS, lambda file: file.write(buffer.getvalue()))
            self.compiled = chosen

    def _for_a_report(self, path: str, content: bytes) -> bytes:
        """What a report reads of a finished run's file; in its config, folders of the data as the list names them."""
        if path == "positions.npz":
            buffer = io.BytesIO()
            np.savez(buffer, **span_arrays(io.BytesIO(content)))
            return buffer.getvalue()
        if path != "config.json" or self.data is None:
            return content
        config = json.loads(content)
        for name, value in config.get("data", {}).items():
            if isinstance(value, str) and value and pathlib.PurePath(value).is_relative_to(self.data):
                config["data"][name] = DATA + pathlib.PurePath(value).relative_to(self.data).as_posix()
        return (json.dumps(config, indent=2) + "\n").encode()


def _compressed(place: str, files: Iterable[tuple[str, bytes]]) -> bytes:
    """A part of an archive, with a checksum of its own: other parts or `END` may follow it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files:
            _add(archive, f"{place}/{path}", content)
        size = archive.offset  # before the end of an archive
    return gzip.compress(buffer.getvalue()[:size], 1, mtime=0)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mtime: float = 0) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(content), mtime
    archive.addfile(member, io.BytesIO(content))


def _files(run: pathlib.Path, but: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
    """The files of a run folder. Checkpoints come first: metrics must not be older than these."""
    for path in sorted(run.rglob("*"), key=lambda path: (path.relative_to(run).parts[0] != "checkpoints", path)):
        parts = path.relative_to(run).parts
        is_temporary = any(part.startswith(".") or "orbax-checkpoint-tmp" in part for part in parts)
        if path.is_file() and parts[0] not in but and not is_temporary:
            yield path.relative_to(run).as_posix(), path.read_bytes()


def _packed(run: pathlib.Path, name: str) -> bytes | None:
    """An unfinished run as a part of an archive; None if its checkpoints change whenever they are read."""
    for _ in range(5):
        there = {*checkpoint_steps(run)}
        try:
            packed = _compressed(name, _files(run, ("figures",)))
        except FileNotFoundError:  # the run has deleted a checkpoint meanwhile
            continue
        if there <= {*checkpoint_steps(run)}:
            return packed
    return None


def take(folder: pathlib.Path, work: pathlib.Path, results: pathlib.Path) -> None:
    """Joins the finished runs of a slice with those in `results`, and puts the others into `work`.

    Raises:
      InputError: there is no slice, a file of it is damaged, or some sweeps are not those in `results`. Those are left
        out, and the others are taken.
    """
    parts = {kind: sorted(folder.glob(f"{kind}*.tar.gz")) for kind in (FINISHED, UNFINISHED)}
    if not parts[FINISHED]:
        raise InputError(f"--take={folder}: expected the folder of a slice, with {FINISHED}_0.tar.gz")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        finished, unfinished, programs = (pathlib.Path(temporary, name) for name in (FINISHED, UNFINISHED, PROGRAMS))
        files = [(path, pathlib.Path(temporary, kind)) for kind in parts for path in parts[kind]]
        for path, target in [*files, *((path, programs) for path in folder.glob(PROGRAMS))]:
            try:
                content = gzip.decompress(path.read_bytes())  # which compares the checksums
                if not content.endswith(bytes(2 * tarfile.BLOCKSIZE)):
                    raise EOFError("its end is missing")
                with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                    archive.extractall(target, filter="data")
            except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
                raise InputError(f"{path}: cannot be read ({error})") from error
        names = {path.parents[2].name for path in pathlib.Path(temporary).glob("*finished/*/*/*/config.json")}
        if lacks := [name for name in sorted(names) if not (finished / name / "sweep.json").exists()]:
            wrong.append(f"{folder}: has no sweep.json of {', '.join(lacks)}: expected all files of the slice")
        for sweep in sorted(path.parent for path in finished.glob("*/sweep.json")):
            try:
                there = _join(sweep, results / sweep.name, pathlib.Path(temporary, "joined", sweep.name))
            except InputError as error:
                wrong.append(str(error))
                continue
            runs = (path.parent for path in (unfinished / sweep.name).glob("*/*/config.json"))
            left = {f"{run.parent.name}/{run.name}": run for run in sorted(runs)}
            for name in left.keys() - there:
                _go_on_with(left[name], work / sweep.name / name, work / ".taken")
            if left.keys() - there and not (work / sweep.name / "sweep.json").exists():
                shutil.copy(sweep / "sweep.json", work / sweep.name)
        if programs.exists():
            shutil.copytree(programs, work / OF_PROGRAMS, dirs_exist_ok=True)
    if wrong:
        raise InputError("; ".join(wrong))


def _join(sweep: pathlib.Path, target: pathlib.Path, joined: pathlib.Path) -> set[str]:
    """Adds the finished runs of a slice to those of the target. Returns all of these, as TREATMENT/SEED.

    `joined` is a folder in which the report is made, so that the target has all of it or nothing.
    """
    from posattn_jax.config.saved import completed  # here, since it needs the libraries of a run

    path = target / runs_file.NAME
    there = read_runs(target, completed) if path.exists() else None
    known = {f"{run.treatment}/{run.seed}": run for run in there.all} if there else {}
    packed = {f"{path.parent.parent.name}/{path.parent.name}" for path in sweep.glob("*/*/config.json")}
    if not packed:
        return {*known}
    new = read_runs(sweep, completed)
    read = {f"{run.treatment}/{run.seed}": run for run in new.all}
    if packed - read.keys():
        raise InputError(f"{target}: the slice's {', '.join(sorted(packed - read.keys()))} cannot be read")
    if there and there.plan.question != new.plan.question:
        raise InputError(f'{target} has another sweep, "{there.plan.question}"')
    for name, run in read.items():
        if name in known:
            if known[name].figures != run.figures:
                was = known[name].response
                print(f"{target}: {name} stays {was:.4f}, the slice's is {run.response:.4f}", file=sys.stderr)
            shutil.rmtree(sweep / name)
    if read.keys() <= known.keys():
        return {*known}
    runs_file.write(joined / runs_file.NAME, there or new)
    with contextlib.redirect_stdout(io.StringIO()):  # it names the temporary folder
        report.write(joined, [sweep] if there else [], completed)
    shutil.copytree(joined, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(runs_file.NAME))
    write_text(path, (joined / runs_file.NAME).read_text(encoding="utf-8"))
    print(f"{target}: {len(read.keys() - known.keys())} runs more, {len(read.keys() | known.keys())} in all")
    return {*known, *read}


def _go_on_with(run: pathlib.Path, target: pathlib.Path, scratch: pathlib.Path) -> None:
    """Puts an unfinished run into its place, unless the one that is there is as far, or is another one."""
    old = None
    if (target / "config.json").exists():
        configs = [flatten_dict(read_json(each / "config.json"), sep=".") for each in (run, target)]
        one, other = ({name: value for name, value in each.items() if name not in OF_THE_PLACE} for each in configs)
        if one != other:
            print(f"{target}: stays, the slice's has another config", file=sys.stderr)
            return
        how_far = lambda each: (max(checkpoint_steps(each), default=0), (each / "summary.json").exists())
        if how_far(target) >= how_far(run):
            return
        old = scratch / "old"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(run, scratch / "new")
    target.parent.mkdir(parents=True, exist_ok=True)
    if old:
        target.rename(old)
    (scratch / "new").rename(target)
    shutil.rmtree(scratch)
    print(f"to go on: {target}, step {max(checkpoint_steps(target))}")


def main(argv: list[str]) -> int:
    """Parses the command line, and works off or takes; returns the exit code."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", type=pathlib.Path, metavar="LIST", help="sweeps, one in a line")
    parser.add_argument("--minutes", type=float, help="how long to work, with starting and saving")
    parser.add_argument("--out", type=pathlib.Path, help="where what came of it is written")
    parser.add_argument("--data", type=pathlib.Path, help="the folder that DATA/ stands for in the list")
    parser.add_argument("--take", type=pathlib.Path, help="the folder of a slice, to be joined with the results")
    parser.add_argument("--check", action="store_true", help="only say which sweeps of the list could not start")
    parser.add_argument("--work", type=pathlib.Path, default=WORK, help="unfinished runs")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="finished runs")
    parser.add_argument(
        "--parts", type=int, default=7, help="most files with runs, of which the finished ones are first"
    )
    parser.add_argument("--part_mib", type=float, default=15.0, help="largest size of each")
    parser.add_argument("--every", type=float, default=60, help="seconds between two times that --out is written")
    parser.add_argument("--spent", type=float, default=0, help="seconds of --minutes that are over when it starts")
    options = parser.parse_args(argv[1:])
    if options.take is not None:
        if options.list is not None or options.minutes is not None or options.out is not None:
            raise InputError("--take: expected no LIST, --minutes or --out next to it")
        take(options.take, options.work, options.results)
        return 0
    if options.check and options.list is not None:
        check(read_list(options.list), options.work, options.results)
        return 0
    if options.list is None or options.minutes is None or options.out is None:
        raise InputError("expected --minutes=11 --out=FOLDER LIST, --take=FOLDER, or --check LIST")
    if options.minutes * 60 <= SECONDS_TO_SAVE:
        raise InputError(f"--minutes={options.minutes:g}: expected more than {SECONDS_TO_SAVE / 60:g}")
    for name, least in (("parts", 1), ("part_mib", 0.1), ("every", 1)):
        if getattr(options, name) < least:
            raise InputError(f"--{name}={getattr(options, name):g}: expected at least {least:g}")
    if options.data is not None:
        options.data = options.data.resolve()
    sweeps = read_list(options.list)
    for sweep in sweeps:
        _command(sweep, options.work, options.results, options.data)  # says what is missing before the first starts
    command_line.make_folder(str(options.out))
    if taken := next(options.out.glob("*finished*.tar.gz"), None):
        raise InputError(f"--out={options.out}: has {taken.name} already: take it (--take), or choose another folder")
    packer = Packer(
        sweeps,
        options.work,
        options.out,
        options.data,
        options.parts,
        options.part_mib,
        _known(sweeps, options.results),
    )
    end = started - options.spent + 60 * options.minutes - SECONDS_TO_SAVE
    return work_off(sweeps, end, options.work, options.results, options.data, packer, options.every)


def _known(sweeps: Sequence[Sweep], results: pathlib.Path) -> frozenset[str]:
    """NAME/TREATMENT/SEED of the runs that are in the results."""
    files = {sweep.name: results / sweep.name / runs_file.NAME for sweep in sweeps}
    read = {name: runs_file.read(path).all for name, path in files.items() if path.exists()}
    return frozenset(f"{name}/{run.treatment}/{run.seed}" for name, runs in read.items() for run in runs)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv))
