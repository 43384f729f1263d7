"""Unpack the Chromium that the npm package @sparticuz/chromium carries; run by `make browser` in its environment."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path


def unpack(browser: Path) -> Path:
    """Unpack ``node_modules/@sparticuz/chromium/bin`` of a directory into ``chromium`` beside it.

    Returns:
        The program. Libraries that a system may lack lie in ``lib`` beside it, a font in ``fonts``.
    """
    import brotli

    packed, made = browser / "node_modules" / "@sparticuz" / "chromium" / "bin", browser / "chromium"
    made.mkdir(exist_ok=True)
    program = made / "chromium"
    program.write_bytes(brotli.decompress((packed / "chromium.br").read_bytes()))
    program.chmod(0o755)
    for name in ("al2023", "fonts", "swiftshader"):
        content = io.BytesIO(brotli.decompress((packed / f"{name}.tar.br").read_bytes()))
        with tarfile.open(fileobj=content) as archive:
            archive.extractall(made, filter="data")
    return program


if __name__ == "__main__":
    print(unpack(Path(sys.argv[1])))
