"""How the memory that arrays leave is kept for the next ones: to get it anew from the system takes a tenth of a fit."""

import ctypes
import os

_POLARS, _KEPT_FOR = "_RJEM_MALLOC_CONF", "dirty_decay_ms:1000,muzzy_decay_ms:1000"  # jemalloc
_OF_GLIBC = {  # parameters of mallopt(3)
    -1: 128 << 20,  # M_TRIM_THRESHOLD: bytes that stay, free, at the end of the heap
    -3: 32 << 20,  # M_MMAP_THRESHOLD: bytes of an array from which on it goes back to the system at once
    -8: 2,  # M_ARENA_MAX: heaps, each of which keeps what is free in it
}


def keep_freed_memory() -> None:
    """Keep what is freed for a while. NumPy and Polars are loaded afterwards; other allocators stay as they are."""
    os.environ.setdefault(_POLARS, _KEPT_FOR)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _OF_GLIBC.items():
            mallopt(parameter, value)
