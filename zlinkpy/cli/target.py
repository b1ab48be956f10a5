"""Finding the host that ``zlink run MODULE:HOST`` names.

Whoever mistypes the target gets the nearest names of what is there, and an error inside the module is reported with
the line of *that* module it came from. The module is imported by name with the working directory on ``sys.path``; a
file path is refused with the name to use instead, because a module loaded by path would exist twice as soon as
somebody imports it.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import sys
import traceback
from types import ModuleType

from zlinkpy.errors import ConfigurationError
from zlinkpy.runtime import Host

_FORM = "write MODULE:HOST, as in zlink run chat.server:host"


def load_host(target: str) -> Host:
    """Import ``MODULE`` of ``MODULE:HOST`` and return its `Host`.

    HOST may be dotted. A function or class is not called: a host that needs arguments belongs in a module of its own.

    Raises:
        ConfigurationError: Naming what was not found or not right, and what to write instead.
    """
    module_name, separator, path = target.partition(":")
    if not separator or not module_name or not path:
        raise ConfigurationError(_malformed(target, module_name))
    if "/" in module_name or module_name.endswith(".py"):
        raise ConfigurationError(f"{target!r}: MODULE is a name, not a file; write {_as_name(module_name)}:{path}")
    found: object = _import(module_name)
    walked = module_name
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{target!r}: {walked} has no {part!r}{_hosts_hint(found, part, module_name)}")
        found, walked = getattr(found, part), f"{walked}.{part}"
    if not isinstance(found, Host):
        what = "a function" if callable(found) and not isinstance(found, type) else f"of type {type(found).__name__}"
        raise ConfigurationError(
            f"{target!r} is {what}, not a Host{_hosts_hint(sys.modules[module_name], '', module_name)}"
        )
    return found


def _malformed(target: str, module_name: str) -> str:
    if target and ":" not in target:
        name = _as_name(target) if "/" in target or target.endswith(".py") else target
        return f"{target!r} names no host; write {name}:host if the host is called host"
    return f"{target!r} is not a target ({'nothing before' if not module_name else 'nothing after'} the colon); {_FORM}"


def _as_name(path: str) -> str:
    return path.removesuffix(".py").strip("./").replace("/", ".")


def _import(name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise ConfigurationError(f"no module named {missing.name!r}{_modules_hint(missing.name)}") from None
        raise _broken(name, missing) from missing
    except ConfigurationError as problem:
        raise ConfigurationError(f"module {name}{_place(name, problem)}: {problem.message}") from problem
    except (Exception, SystemExit) as problem:
        raise _broken(name, problem) from problem


def _broken(name: str, problem: BaseException) -> ConfigurationError:
    """An import that failed inside the module: what, and on which line of user code."""
    text = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, SyntaxError):
        return ConfigurationError(
            f"module {name} ({problem.filename}:{problem.lineno}) does not compile: {problem.msg}"
        )
    return ConfigurationError(f"module {name}{_place(name, problem)} cannot be imported: {text}")


def _place(name: str, problem: BaseException) -> str:
    """The innermost line outside zlinkpy and the import system, as `` (file:line)``."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if not frame.filename.startswith(("<frozen importlib", own, os.path.dirname(importlib.__file__))):
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _modules_hint(name: str) -> str:
    parent, _, wanted = name.rpartition(".")
    if parent:
        names = [module.name for module in pkgutil.iter_modules(sys.modules[parent].__path__)]
    else:
        names = [module.name for module in pkgutil.iter_modules([os.getcwd()])]
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5) or (names if len(names) <= 5 else [])
    where = f"in package {parent}" if parent else f"in {os.getcwd()} or the installed packages"
    prefix = f"{parent}." if parent else ""
    return f" {where}" + (f"; there is {', '.join(prefix + near for near in close)}" if close else "")


def _hosts_hint(owner: object, wanted: str, module_name: str) -> str:
    names = (
        [name for name, value in vars(owner).items() if isinstance(value, Host)] if hasattr(owner, "__dict__") else []
    )
    if names:
        close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.0) or names
        return "; its hosts: " + ", ".join(f"{module_name}:{name}" for name in close)
    return "; it has no Host, create one with host = Host(…)"
