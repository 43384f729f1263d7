"""A package of somebody else's, installed beside goldstick as pip would leave it."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, package: str, modules: dict[str, str], entry_points: str) -> Path:
    """Put modules (name → source) and the metadata of a distribution into a new directory, to be on the path."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    return folder
