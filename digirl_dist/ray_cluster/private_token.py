"""The token of a Ray cluster that this program starts: nobody else on the machine can use the cluster without it."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


class PrivateToken:
    """A token in a file of this user's, which Ray's processes are told of by their environment until ``close``.

    What the user says by these variables stays: another mode, or a token of their own. Versions of Ray without tokens
    ignore it.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _PATH)}
        if self._before[_MODE] is None:
            os.environ[_MODE] = "token"
        if os.environ[_MODE].lower() == "token" and self._before[_TOKEN] is None and self._before[_PATH] is None:
            handle, name = tempfile.mkstemp(prefix="digirl-dist-ray-token-")
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
            self._file = Path(name)
            os.environ[_PATH] = name
        _read_again()

    def close(self) -> None:
        """Removes the file and restores the environment; a second call is harmless."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        _read_again()


def _read_again() -> None:
    """Makes Ray, which keeps what it read when it was imported, read the variables again."""
    try:
        import ray._raylet as raylet
    except ImportError:
        return
    kept: Any = raylet
    if hasattr(kept, "AuthenticationTokenLoader"):  # versions of Ray without tokens have none
        kept.Config.initialize("")
        kept.AuthenticationTokenLoader.instance().reset_cache()
