"""Break the code on purpose and see the tests notice: `make mutants [AREA=LV]`.

usage: python -m tests.mutants.run [--area LV] [--name NAME] [--jobs 2] [--timeout 120]

Each worker has one copy of the project. First the tests that the chosen mutants name run unbroken: they must pass, and
this tells which test files hold them. Then each break is applied to the copy, its tests run, and the file is restored.
A mutant is killed when for every id in `fails`, and for `tests` as a whole, at least one test failed. Tests marked slow
run for those ids only that have no other, and for `tests` that are green without them. It is a failure of this run when

- tests stay green, or there is no test for an id;
- the break does not parse, or the module or a test module does not import with it: red for the wrong reason;
- the tests do not end within the timeout: a hang is not a failing test, the test needs a bound of its own.

The working tree is never touched. Generated mutants (all operators, all lines) were rejected: hundreds of equivalent
ones hide the few that matter, while these say which promise each break violates.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attrs import frozen

from tests.contract_index import files_naming
from tests.mutants.catalogue import CatalogueError, Mutant, load
from tests.mutants.guard import FAILED, MODULE_VARIABLE, ROOT_VARIABLE

PROJECT = Path(__file__).resolve().parent.parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info")
QUIET = ("-q", "-p", "no:cacheprovider")
QUICK = ("-m", "not slow")
CONTRACT_REPORT = Path("build") / "contract-report.json"
EXIT_NOTHING_SELECTED = 5
SHARES = 4
"""The unbroken run comes in parts, so that every worker has something to do."""
BASELINE_FACTOR = 10
"""The unbroken run takes all tests of an area at once, a mutant only a few: it may take this many timeouts."""


class RunError(Exception):
    """The run cannot say anything about the mutants; the text says why."""


@frozen(kw_only=True)
class Known:
    """Where the tests of an id are, by id."""

    files: dict[str, set[str]]
    slow: set[str]
    """The ids that only tests marked slow are about."""


@frozen(kw_only=True)
class Outcome:
    """What one pytest run said."""

    status: int | None
    """Exit status, None when the time was up."""
    failed: list[str]
    """The failing tests; a file that cannot be collected is none."""
    items: dict[str, dict[str, str]]
    """The contract report: id -> test -> outcome."""
    output: str

    def failing_test(self, name: str) -> str | None:
        """A failing test of the contract id `name`."""
        tests = self.items.get(name, {})
        return next((test for test, outcome in tests.items() if outcome in ("failed", "error")), None)

    def tail(self, lines: int = 12) -> str:
        return "\n".join("      " + line for line in self.output.strip().splitlines()[-lines:])


@frozen(kw_only=True)
class Verdict:
    """How one mutant ended."""

    mutant: Mutant
    killed: bool
    text: str
    seconds: float


class Copy:
    """A private copy of the project in which one worker breaks and tests."""

    def __init__(self, root: Path, folder: Path, timeout: float) -> None:
        self.root = folder.resolve() / "project"
        self._timeout = timeout
        self._output = folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(root, self.root, ignore=LEFT_OUT)

    def run(self, arguments: Sequence[str], *, module: str | None = None, timeout: float | None = None) -> Outcome:
        """Run pytest in the copy, for at most `timeout` seconds."""
        report, failures = self.root / CONTRACT_REPORT, self.root / FAILED
        report.unlink(missing_ok=True)
        failures.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": str(self.root), ROOT_VARIABLE: str(self.root), MODULE_VARIABLE: module or ""}
        # Output goes to a file: a process that a test left behind would hold a pipe open.
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *QUIET, "-p", "tests.mutants.guard", *arguments],
                cwd=self.root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what a test started ends with it
            )
            try:
                status: int | None = self._process.wait(timeout or self._timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.abort()
        return Outcome(
            status=status,
            failed=json.loads(failures.read_text(encoding="utf-8")) if failures.exists() else [],
            items=json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
            output=self._output.read_text(encoding="utf-8", errors="replace"),
        )

    def abort(self) -> None:
        """End the pytest run of this copy and everything it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def judge(self, mutant: Mutant, known: Known) -> Verdict:
        """Apply the break, run its tests, restore the file."""
        start = time.perf_counter()
        target = self.root / mutant.file
        original = target.read_bytes()
        times = target.stat()
        broken = original.decode("utf-8").replace(mutant.old, mutant.new).encode("utf-8")
        target.write_bytes(broken)
        # Compiled files are matched by size and whole seconds: a break of the same length must not look unchanged.
        os.utime(target, (times.st_atime, times.st_mtime + 10))
        try:
            killed, text = self._decide(mutant, broken, known)
        finally:
            target.write_bytes(original)
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
        return Verdict(mutant=mutant, killed=killed, text=text, seconds=time.perf_counter() - start)

    def _decide(self, mutant: Mutant, broken: bytes, known: Known) -> tuple[bool, str]:
        if mutant.file.endswith(".py"):
            try:
                ast.parse(broken)
            except SyntaxError as error:
                return False, f"the break does not parse: {error}"
        killers: list[str] = []
        pending = set(mutant.fails)
        while pending:
            names = ",".join(sorted(pending))
            chosen = sorted({file for name in pending for file in known.files[name]})
            speed = () if pending & known.slow else QUICK
            # -x: the first failing test usually settles it; where several ids are named, the rest run again.
            outcome = self.run(["-x", *speed, "--contract", names, *chosen], module=mutant.module)
            noticed = {name: test for name in sorted(pending) if (test := outcome.failing_test(name))}
            if not noticed:
                return False, complaint(outcome, f"the tests of {names}")
            killers += [f"{name} ({test})" for name, test in noticed.items()]
            pending -= set(noticed)
        if mutant.tests:
            outcome = self.run(["-x", *QUICK, *mutant.tests], module=mutant.module)
            if outcome.status in (0, EXIT_NOTHING_SELECTED):
                slow = self.run(["-x", "-m", "slow", *mutant.tests], module=mutant.module)
                outcome = outcome if slow.status == EXIT_NOTHING_SELECTED else slow
            if not outcome.failed:
                return False, complaint(outcome, " ".join(mutant.tests))
            killers.append(outcome.failed[0])
        return True, "killed by " + ", ".join(killers)


def complaint(outcome: Outcome, tests: str) -> str:
    """Why a run of the broken code is no kill."""
    if outcome.status is None:
        return f"time is up: {tests} did not end"
    if outcome.status == 0:
        return f"NOT NOTICED: {tests} passed"
    if outcome.status == EXIT_NOTHING_SELECTED:
        return f"no test selected by {tests}"
    return f"broken beyond running (pytest exit status {outcome.status}), so {tests} say nothing\n{outcome.tail()}"


@contextmanager
def workers(copies: Sequence[Copy]) -> Iterator[ThreadPoolExecutor]:
    """A thread for each copy. An interrupt reaches only this thread, so it ends the runs of the others."""
    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.abort()
            raise


def check_unbroken(
    pool: ThreadPoolExecutor, free: queue.SimpleQueue[Copy], mutants: Iterable[Mutant], root: Path, timeout: float
) -> Known:
    """Run what the mutants name on the unbroken code, and note where the passing tests of each id are.

    Raises RunError when a test is red without any break, or an id has no test.
    """
    ids = frozenset(name for mutant in mutants for name in mutant.fails)
    plain = sorted({file for mutant in mutants for file in mutant.tests})
    known = Known(files={name: set() for name in ids}, slow=set())

    def run(arguments: list[str]) -> Outcome:
        copy = free.get()
        outcome = copy.run(arguments, timeout=timeout)
        free.put(copy)
        return outcome

    def run_shares(names: frozenset[str], speed: tuple[str, ...], plain: list[str]) -> None:
        runs: list[list[str]] = []
        candidates = sorted({str(file) for files in files_naming(root, names).values() for file in files})
        for share in range(SHARES):
            if candidates[share::SHARES]:
                runs.append([*speed, "--contract", ",".join(sorted(names)), *candidates[share::SHARES]])
            if plain[share::SHARES]:
                runs.append([*speed, *plain[share::SHARES]])
        for outcome in pool.map(run, runs):
            if outcome.status is None:
                raise RunError(f"the tests without any break did not end in {timeout:.0f} s")
            if outcome.status not in (0, EXIT_NOTHING_SELECTED):
                raise RunError(f"the tests do not pass without any break:\n{outcome.tail(40)}")
            for name in names & set(outcome.items):
                passed = (test for test, result in outcome.items[name].items() if result == "passed")
                known.files[name] |= {test.partition("::")[0] for test in passed}

    run_shares(ids, QUICK, plain)
    known.slow.update(name for name in ids if not known.files[name])
    run_shares(frozenset(known.slow), (), [])
    missing = sorted(name for name in ids if not known.files[name])
    if missing:
        raise RunError("no test passes for: " + ", ".join(missing))
    return known


def run_all(root: Path, mutants: Sequence[Mutant], *, jobs: int, timeout: float) -> list[Verdict]:
    """Judge all mutants and print a line for each as it ends."""
    jobs = max(1, min(jobs, len(mutants)))
    verdicts: list[Verdict] = []
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def judge(mutant: Mutant) -> None:
        copy = free.get()
        verdict = copy.judge(mutant, known)
        free.put(copy)
        verdicts.append(verdict)
        head = f"[{len(verdicts)}/{len(mutants)}] {'ok  ' if verdict.killed else 'FAIL'}"
        print(f"{head} {mutant.area} {mutant.name} ({verdict.seconds:.1f} s): {verdict.text}", flush=True)

    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")) for _ in range(jobs)]
        copies = [Copy(root, Path(folder), timeout) for folder in folders]
        for copy in copies:
            free.put(copy)
        print(f"{len(mutants)} mutants; first their tests without a break ...", flush=True)
        start = time.perf_counter()
        with workers(copies) as pool:
            known = check_unbroken(pool, free, mutants, copies[0].root, timeout * BASELINE_FACTOR)
            print(f"  all green ({time.perf_counter() - start:.1f} s)", flush=True)
            list(pool.map(judge, mutants))
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description="Break the code, see tests fail.")
    parser.add_argument("--area", help="only the mutants of this area, e.g. LV")
    parser.add_argument("--name", help="only this mutant")
    parser.add_argument("--jobs", type=int, default=2, help="how many copies work at once (default 2)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds one pytest run may take (default 120)")
    parser.add_argument("--root", type=Path, default=PROJECT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        mutants = load(options.root, area=options.area, name=options.name)
        verdicts = run_all(options.root, mutants, jobs=options.jobs, timeout=options.timeout)
    except (CatalogueError, RunError) as error:
        print(error)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind")
        return 130
    alive = [verdict for verdict in verdicts if not verdict.killed]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} mutants killed")
    for verdict in alive:
        print(f"  {verdict.mutant.area} {verdict.mutant.name}: {verdict.text.splitlines()[0]}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
