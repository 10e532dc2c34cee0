"""Programs of ``script/`` as modules, so that their functions can be called."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    """Loads ``script/NAME``, which is Python without the suffix."""
    loader = SourceFileLoader(f"script_{name}", str(ROOT / "script" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
