"""Rules of the house that no linter knows: clocks, layers, who may import what, and what a text may say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.clocks import other_clocks, wall_clock_decisions
from tests.house.source import ROOT, Names, imported_modules, python_files, text_files

LIBRARY = "zlinkpy"
LINE_LIMIT = 600

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages() -> set[str]:
    """The modules and packages directly below zlinkpy."""
    children = (ROOT / LIBRARY).iterdir()
    return {
        f"{LIBRARY}.{child.stem}"
        for child in children
        if (child.suffix == ".py" and child.stem not in ("__init__", "__main__")) or (child / "__init__.py").exists()
    }


# --- logs


@pytest.mark.contract("SA-284")
def test_the_library_logs_behind_a_fence() -> None:
    """Only `zlinkpy.telemetry.get_logger` asks for a logger; `zlink` sets the root logger up."""
    allowed = {"zlinkpy/telemetry/fence.py", "zlinkpy/cli/logs.py"}
    found = [
        f"{path}:{node.lineno}"
        for path, tree in python_files(LIBRARY)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("getLogger", "Logger") and str(path) not in allowed
    ]
    assert not found, "take the logger from zlinkpy.telemetry.get_logger"


# --- clocks


@pytest.mark.contract("LV-09")
def test_no_wall_clock_reading_decides_anything() -> None:
    found = [
        f"{path}:{line}: {problem}"
        for path, tree in python_files(LIBRARY, "examples", "benchmarks")
        for line, problem in wall_clock_decisions(tree)
    ]
    assert not found, "the wall clock is for printed timestamps only; give a printed one a name of its own"


@pytest.mark.contract("LO-370")
def test_location_computes_no_time_from_the_wall_clock() -> None:
    trees = dict(python_files(f"{LIBRARY}/location"))
    assert trees
    assert not [f"{path}:{line}" for path, tree in trees.items() for line, _ in wall_clock_decisions(tree)]
    assert not [f"{path}:{line} {name}" for path, tree in trees.items() for line, name in other_clocks(tree)]


def test_elapsed_time_has_one_source() -> None:
    found = [f"{path}:{line}: {name}" for path, tree in python_files(LIBRARY) for line, name in other_clocks(tree)]
    assert not found, "elapsed time is trio.current_time(), in a thread the clock object it was given"


@pytest.mark.parametrize(
    "source",
    [
        "import time\nelapsed = time.time() - begin",
        "import time as t\nlate = t.time() > limit",
        "from time import time\ndeadline = time() + 5",
        "from time import time as wall\nbegin = wall()\ndef f():\n    return other - begin",
        "import time\nms = int(time.time() * 1000)\nleft = end - ms",
        "import time\nms = time.time_ns() // 1_000_000\nms -= 5",
        "import time\ncount = 0\ncount += time.time()",
        "from datetime import datetime as dt, timedelta, UTC\nend = dt.now(UTC) + timedelta(seconds=3)",
        "import datetime\nif datetime.datetime.utcnow() < end: pass",
        "from datetime import datetime\nold = datetime.now().timestamp() - 3",
        "import time\nclass A:\n    def f(self): self.seen = time.time()\n    def g(self): return self.seen < 3",
        "import time\nclass A:\n    def __init__(self, c=time.time): self.c = c\n    def g(self): return self.c() - 1",
        "import time\ndef f(*, clock=time.time): return clock() - 3",
        "import time\nclass A:\n    c: object = field(default=time.time)\n    def f(self): return self.c() - 1",
        "import time\ndef wall(): return time.time()\nage = wall() - begin",
        "import time\nwall = lambda: time.time()\nage = wall() - begin",
        "import time\na, b = time.time(), 3\nc = a - b",
        "import time\nif (x := time.time()) and x > 3: pass",
        "import time\nlast = max(seen, time.time())",
        "import time\nmachine.tick(now=time.time())",
        "import time\nwait(deadline=time.time() if x else 3)",
    ],
)
def test_the_clock_check_finds(source: str) -> None:
    assert list(wall_clock_decisions(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime, UTC\nprint(datetime.now(UTC).isoformat() + 'Z')",
        "import time\nrow = {'updatedAtEpochMs': str(int(time.time() * 1000))}",
        "import time\nprint(f'{time.time()}' + ' s')",
        "import time\nif time.strftime('%Y') == '2026': pass",
        "import trio\nleft = deadline - trio.current_time()",
        "def f(time): return time.time() - 3",
        "import time\nstamp = None\nstamp = time.time()\nif stamp is None: pass",
    ],
)
def test_the_clock_check_lets_printing_pass(source: str) -> None:
    assert not list(wall_clock_decisions(ast.parse(source)))


def test_the_check_for_other_clocks_follows_aliases() -> None:
    source = "import time as t\nfrom time import perf_counter as p\nt.monotonic()\np()\nt.time()"
    assert [name for _, name in other_clocks(ast.parse(source))] == ["time.monotonic", "time.perf_counter"]


# --- who imports what


def transport_violations(path: str, tree: ast.Module) -> list[str]:
    """What LV-11 forbids in one file: zmq outside the transport package, and anything undocumented inside it."""
    found: list[str] = []
    names = Names(tree)
    named = [word for call in ast.walk(tree) if isinstance(call, ast.Call) for word in call.args]
    names_libzmq = any(isinstance(word, ast.Constant) and "zmq" in str(word.value) for word in named)
    inside = path.startswith(f"{LIBRARY}/transport/")
    for line, module in imported_modules(tree):
        top, *rest = module.split(".")
        if top == "zmq":
            if not inside:
                found.append(f"{path}:{line}: imports {module}")
            elif any(part.startswith("_") or part in ("backend", "sugar") for part in rest):
                found.append(f"{path}:{line}: {module} is not public")
        elif top in ("ctypes", "cffi", "_cffi_backend") and (inside or names_libzmq):
            found.append(f"{path}:{line}: imports {module}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = names.resolve(node)
            if name and name.startswith("zmq.") and any(part.startswith("_") for part in name.split(".")):
                found.append(f"{path}:{node.lineno}: {name} is not public")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            option = node.args[0]
            numbered = isinstance(option, ast.Constant) and isinstance(option.value, int)
            if numbered and node.func.attr in ("setsockopt", "getsockopt", "set_string", "get_string", "set_hwm"):
                found.append(f"{path}:{node.lineno}: a socket option given as a number")
    return found


@pytest.mark.contract("LV-11")
def test_only_the_transport_package_uses_zmq_and_only_its_public_names() -> None:
    trees = dict(python_files(LIBRARY))
    assert any(path.startswith(f"{LIBRARY}/transport/") for path in trees)
    assert not [problem for path, tree in trees.items() for problem in transport_violations(path, tree)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("zlinkpy/mesh/peer.py", "import zmq"),
        ("zlinkpy/mesh/peer.py", "def f():\n    from zmq import Context"),
        ("zlinkpy/mesh/peer.py", "import importlib\nz = importlib.import_module('zmq')"),
        ("zlinkpy/mesh/peer.py", "z = __import__('zmq')"),
        ("zlinkpy/transport/socket.py", "import zmq.backend.cython"),
        ("zlinkpy/transport/socket.py", "from zmq import sugar"),
        ("zlinkpy/transport/socket.py", "from zmq._future import _AsyncSocket"),
        ("zlinkpy/transport/socket.py", "import zmq as z\nz._private()"),
        ("zlinkpy/transport/socket.py", "import ctypes"),
        ("zlinkpy/wire/codec.py", "import ctypes.util as u\nu.find_library('zmq')"),
        ("zlinkpy/wire/codec.py", "from cffi import FFI\nFFI().dlopen('libzmq.so.5')"),
        ("zlinkpy/transport/socket.py", "socket.setsockopt(22, 1)"),
    ],
)
def test_the_zmq_check_finds(path: str, source: str) -> None:
    assert transport_violations(path, ast.parse(source))


def test_the_zmq_check_lets_public_names_and_other_libraries_pass() -> None:
    source = "import zmq\nfrom zmq.utils.monitor import parse_monitor_message\nsocket.setsockopt(zmq.LINGER, 0)"
    assert not transport_violations("zlinkpy/transport/socket.py", ast.parse(source))
    assert not transport_violations("zlinkpy/location/server.py", ast.parse("import ctypes\nctypes.CDLL(None)"))


def test_nothing_blocks_the_loop_or_brings_a_second_one() -> None:
    found: list[str] = []
    for path, tree in python_files(LIBRARY):
        if not path.startswith(f"{LIBRARY}/portal/"):
            found += [
                f"{path}:{line}: {name}" for line, name in imported_modules(tree) if name.split(".")[0] == "asyncio"
            ]
        names = Names(tree)
        found += [
            f"{path}:{node.lineno}: time.sleep"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute) and names.resolve(node) == "time.sleep"
        ]
    assert not found


# --- layers and dependencies


def test_every_package_has_its_layer() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = (each for each in contracts if each["type"] == "layers")
    named = [name.strip() for layer in layers["layers"] for name in re.split(r"[|:]", layer)]
    assert sorted(named) == sorted(set(named))
    assert set(named) == packages()


def test_the_zmq_contract_covers_every_other_package() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("forbidden_modules") == ["zmq"])
    assert set(contract["source_modules"]) == packages() - {f"{LIBRARY}.transport"}


def declared_dependencies() -> set[str]:
    """Normalised names of everything pyproject.toml asks for."""
    project = PYPROJECT["project"]
    wanted = [*PYPROJECT["build-system"]["requires"], *project["dependencies"]]
    for group in (*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()):
        wanted += group
    return {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower().replace("_", "-") for text in wanted}


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE))
    assert explained == declared_dependencies()


# --- texts


def machine_paths(text: str) -> list[str]:
    """Absolute paths that exist on the machine of whoever wrote them, and nowhere else."""
    return re.findall(r"(?<![\w.$}~-])/(?:home|Users)/\w+|(?<![\w.$}~-])/(?:work|root|tmp)/\w+", text)


UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")
INDEX_HOSTS = re.compile(r"\bpypi\.org|pythonhosted\.org", re.IGNORECASE)


def test_no_text_names_a_path_of_one_machine_or_leaves_work_for_later() -> None:
    found: list[str] = []
    for file, text in text_files():
        if file == Path(__file__):
            continue
        path = file.relative_to(ROOT)
        found += [f"{path}: {place}" for place in machine_paths(text)]
        found += [f"{path}: {word}" for word in UNFINISHED.findall(text) + INDEX_HOSTS.findall(text)]
    assert not found


@pytest.mark.parametrize("text", ["see /home/ada/x", "'/tmp/socket'", "ipc:///work/mesh", "`/Users/ada`", "(/root/x)"])
def test_the_path_check_finds(text: str) -> None:
    assert machine_paths(text)


@pytest.mark.parametrize("text", ["https://example.org/work/x", "docs/work/plan.md", "$HOME/tmp/x", "/var/lib/zlink"])
def test_the_path_check_lets_pass(text: str) -> None:
    assert not machine_paths(text)


def test_files_stay_readable_in_one_sitting() -> None:
    lengths = {
        file.relative_to(ROOT).as_posix(): text.count("\n") for file, text in text_files() if file.suffix == ".py"
    }
    assert f"{LIBRARY}/errors.py" in lengths
    assert not {path: lines for path, lines in lengths.items() if lines > LINE_LIMIT}


# --- the public surface


def test_public_names_are_exported_once_and_exist() -> None:
    """The order inside `__all__` is ruff's business (RUF022)."""
    import zlinkpy  # here, so that a package that cannot be imported leaves the other rules standing

    tree = ast.parse((ROOT / LIBRARY / "__init__.py").read_text(encoding="utf-8"))
    exported: list[str] = list(getattr(zlinkpy, "__all__", []))
    assert sorted(exported) == sorted(set(exported))
    assert not [name for name in exported if not hasattr(zlinkpy, name)]
    imported = [
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for name in node.names
    ]
    assert sorted(imported) == sorted(set(imported))
    assert {name for name in imported if not name.startswith("_")} <= set(exported)
    assert not [name for name in exported if name.startswith("_") and name != "__version__"]


def test_nobody_waits_for_the_session_router_without_using_it() -> None:
    code = (
        "import sys, zlinkpy, zlinkpy.cli; zlinkpy.cli.main.get_command(None, 'run'); "
        "assert not [name for name in sys.modules if name.startswith('zlinkpy.sessions')]; "
        "assert {'SessionRouter', 'Host'} <= set(dir(zlinkpy)); "
        "assert zlinkpy.SessionRouter.__module__ == 'zlinkpy.sessions.router'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
