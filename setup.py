"""Compiles the codecs and the thread that flushes; the rest of the package is in pyproject.toml.

`python setup.py build_ext --inplace` for a source tree, `pip install .` for the rest. The C files
go to build/ and are never kept. In a source tree the Python modules are compiled too, as pip does
for an installed package: where PYTHONDONTWRITEBYTECODE is set, compiling them at every start takes
longer than everything else that `jetraft serve` does before it is ready."""

import compileall
import os

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = (
    "broker.wire._run",
    "broker.wire._encode",
    "broker.wire._parser",
    "broker.store.block._block",
    "broker.store.block._builder",
    "broker.store.block._deliveries",
    "broker.store.block._origins",
    "broker.compression._s2",
    "broker.store.index._hashes",
    "broker.store.index._index",
    "broker.store.index._partition",
    "raft.store._sync_thread",
)
# Without debug information (Python's own flags ask for it) the compiler takes a quarter less time.
OPTIONS = ["-O3", "-g0"]


class BuildInPlace(build_ext):
    """build_ext that keeps all cores busy, and leaves bytecode in a source tree."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        super().run()
        if self.inplace:
            for package in ("broker", "raft"):
                compileall.compile_dir(package, quiet=1)


setup(
    cmdclass={"build_ext": BuildInPlace},
    # make has compiled them in place, and pip need not do so again.
    ext_modules=[]
    if "JETRAFT_COMPILED" in os.environ
    else cythonize(
        [
            Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=OPTIONS)
            for name in COMPILED
        ],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": True, "wraparound": False},
    ),
)
