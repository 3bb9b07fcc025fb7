"""Builds the Python package, by the hooks of PEP 517 and PEP 660 that pip calls.

It needs nothing but Python: pip has nothing to download, and all that is written goes to the
folder that the caller names. setuptools would leave build/ and xact.egg-info in the source tree.

The wheel has the C library libxact in it if the setting `library` names the file, as 'make dist'
does:

    pip wheel ./python --config-settings library=target/release/libxact_c.so
"""

import base64
import hashlib
import os
import platform
import re
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "xact"


def _forget_bytecode():
    """Removes the bytecode of this file, which Python has just written into the source tree."""
    cached = globals().get("__cached__")
    if cached and os.path.exists(cached):
        os.remove(cached)
        if not os.listdir(os.path.dirname(cached)):
            os.rmdir(os.path.dirname(cached))


_forget_bytecode()


def _field(name):
    """A text of the table [project] in pyproject.toml; Python has a parser since 3.11 only."""
    return re.search(rf'^{name} = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]


VERSION = re.search(r'^__version__ = "(.*)"$', (PACKAGE / "__init__.py").read_text(), re.M)[1]
# The index of Python knows another package by the module's name.
NAME = f"{_field('name').replace('-', '_')}-{VERSION}"
METADATA = f"""Metadata-Version: 2.1
Name: {_field('name')}
Version: {VERSION}
Summary: {_field('description')}
License: {_field('license')}
Requires-Python: {_field('requires-python')}
"""


def _package_files():
    return {f"xact/{path.name}": path.read_bytes() for path in sorted(PACKAGE.iterdir()) if path.is_file()}


def _wheel(folder, files, system="any"):
    """Writes a wheel with these files, by path, and returns its name."""
    info = f"{NAME}.dist-info"
    pure = "true" if system == "any" else "false"
    wheel = f"Wheel-Version: 1.0\nGenerator: xact_build\nRoot-Is-Purelib: {pure}\nTag: py3-none-{system}\n"
    files = {**files, f"{info}/METADATA": METADATA.encode(), f"{info}/WHEEL": wheel.encode()}
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    record += f"{info}/RECORD,,\n"
    name = f"{NAME}-py3-none-{system}.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in {**files, f"{info}/RECORD": record.encode()}.items():
            # Equal contents make equal wheels.
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return name


def _system(library):
    """The tag of the systems that can load a library: their glibc has the symbols it asks for."""
    needed = max(int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", library))
    return f"manylinux_2_{needed}_{platform.machine()}"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    path = (config_settings or {}).get("library")
    if path is None:
        return _wheel(wheel_directory, _package_files())
    library = Path(path).read_bytes()
    return _wheel(wheel_directory, {**_package_files(), "xact/libxact.so.0": library}, _system(library))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """For 'pip install -e': the package is found in the source tree."""
    return _wheel(wheel_directory, {"xact.pth": f"{ROOT}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    name = f"{NAME}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in ["pyproject.toml", "backend/xact_build.py", *_package_files()]:
            archive.add(ROOT / path, f"{NAME}/{path}")
    return name
