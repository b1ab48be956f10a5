"""Make .venv hold this project and its development tools. `make` calls it; it needs nothing but Python.

usage: python3 .ci/setup.py STAMP

It does nothing when STAMP is newer than pyproject.toml. Several runs at once wait for each other on a file lock, so
two `make` processes can share one tree; STAMP is written last, so an interrupted run is repeated. The syntax is that
of Python 3.6: the sentence that a newer Python is needed has to come out on older ones.
"""

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"


def check_version(python):
    """Leave with a sentence when `python` is older than the project supports."""
    code = "import sys; print('{}.{}'.format(*sys.version_info)); sys.exit(sys.version_info < (3, 11))"
    answer = subprocess.run([python, "-c", code], stdout=subprocess.PIPE)
    if answer.returncode != 0:
        version = answer.stdout.decode().strip() or "broken"
        sys.exit(
            f"set-up: zlinkpy needs Python 3.11 or newer, and {python} is {version}. "
            "Name another one (make PYTHON=python3.12), and remove .venv if it was made with an older one."
        )


def run(command, problem):
    if subprocess.call(command, cwd=ROOT) != 0:
        sys.exit(f"set-up: {problem}")


def is_current(stamp):
    return stamp.exists() and stamp.stat().st_mtime >= (ROOT / "pyproject.toml").stat().st_mtime


def install(stamp):
    if VENV_PYTHON.exists():
        check_version(str(VENV_PYTHON))
    else:
        print(f"set-up: creating .venv with {sys.executable}", flush=True)
        run(
            [sys.executable, "-m", "venv", "--clear", str(VENV)],
            f"`{sys.executable} -m venv` failed; some systems ship it as a package of its own (python3-venv)",
        )
    print("set-up: installing zlinkpy and its tools into .venv", flush=True)
    pip = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Dependency groups came with pip 25.1; the pip inside a fresh venv is as old as the Python it came with.
    run([*pip, "--upgrade", "pip>=25.1"], "pip could not be brought up to date; is the package index reachable?")
    run(
        [*pip, "--editable", ".[embedded,hiredis,examples]", "--group", "dev"],
        "the dependencies could not be installed",
    )
    stamp.touch()


def main():
    check_version(sys.executable)
    with open(ROOT / ".setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = ROOT / sys.argv[1]
        if not is_current(stamp):
            install(stamp)


if __name__ == "__main__":
    main()
