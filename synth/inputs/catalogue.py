"""The machines that synth brings along: `topologies/*.json`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def catalogue_folder() -> Path:
    """The folder of the catalogue (`schema.json`, `sketches/` and the entries), wherever synth is installed.

    `topologies` is a package of data that stands beside `synth`, in a checkout and installed; a folder `_topologies`
    inside `synth` would go first. Raises FileNotFoundError where the installation lacks both.
    """
    for folder in (_PACKAGE / "_topologies", _PACKAGE.parent / "topologies"):
        if (folder / "schema.json").is_file():
            return folder
    raise FileNotFoundError("this installation of synth lacks its folder of topologies")


def catalogue_names() -> list[str]:
    """The names that `--topo` takes, sorted."""
    return sorted(path.stem for path in catalogue_folder().glob("*.json") if path.name != "schema.json")


def catalogue_file(name: str) -> Path | None:
    """The file of entry `name` ("dgx1" or "dgx1.json"); None where there is no such entry."""
    stem = name.removesuffix(".json")
    return catalogue_folder() / f"{stem}.json" if stem in catalogue_names() else None
