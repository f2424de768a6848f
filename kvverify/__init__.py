"""Verify KV-cache copies, tiers and quantised formats against real software."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("kvverify")
    except PackageNotFoundError:  # a source tree on PYTHONPATH, as on a GPU host
        return "0.1.0+source"


__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    # importlib.metadata walks sys.path; most callers never ask for the version
    if name == "__version__":
        return _version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
