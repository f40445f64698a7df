"""The producers of what ships: asked for help, they write nothing."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tools.ship

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(tools.ship.__path__)])
def test_help_writes_nothing(name: str, tmp_path: Path) -> None:
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('tools.ship.{name}', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.lower().startswith("usage:"), done.stderr
    assert not list(tmp_path.iterdir())
