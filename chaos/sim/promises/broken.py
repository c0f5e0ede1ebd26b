"""The verdict of a check that failed.

Owns: the exception.
May not touch: the checks."""

from __future__ import annotations


class BrokenPromise(Exception):
    """A rule was broken; the text says which, and the facts."""
