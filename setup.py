"""Compiles the codecs. Everything else about the package is in pyproject.toml.

`python setup.py build_ext --inplace` for a source tree, `pip install .` for the rest. The C files
go to build/ and are never kept."""

from Cython.Build import cythonize
from setuptools import Extension, setup

CODECS = (
    "broker.wire._run",
    "broker.wire._encode",
    "broker.wire._parser",
    "broker.store.block._block",
    "broker.store.block._builder",
    "broker.store.block._deliveries",
    "broker.store.index._hashes",
    "broker.store.index._index",
)

setup(
    ext_modules=cythonize(
        [
            Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=["-O3"])
            for name in CODECS
        ],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": True, "wraparound": False},
    )
)
