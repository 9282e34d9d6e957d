"""The only place where units are converted.

Sizes are bytes (suffixes are powers of 1024, as in nccl-tests), times microseconds, bandwidths GB/s with GB = 1e9 bytes.
"""

from __future__ import annotations

import re

from synth.errors import InputError

_SUFFIXES = {"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30}
_MAX_DIGITS = 30
_SIZE = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
#: Above this only a mistake of unit lies: no GPU holds such a buffer, and runtimes count bytes in 64 bits.
MAX_SIZE_BYTES = 1 << 50
EXPECTED_SIZE = "a whole number of bytes from 1 to 1048576GB, with KB, MB or GB (powers of 1024) if wanted"


def parse_size(text: str, option: str = "--size") -> int:
    """Bytes that `text` names ("64MB" is 67108864, "1000" is 1000); InputError naming `option` otherwise."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _SUFFIXES or len(match[1]) > _MAX_DIGITS:
        raise InputError(option, "", text, EXPECTED_SIZE)
    size_bytes = int(match[1]) * _SUFFIXES[match[2].upper()]
    if not 0 < size_bytes <= MAX_SIZE_BYTES:
        raise InputError(option, "", text, EXPECTED_SIZE)
    return size_bytes


def parse_size_range(text: str, option: str = "--sizes") -> tuple[int, int]:
    """(smallest, largest) bytes of a range such as "1KB:1GB"; InputError naming `option` where it is none."""
    low_text, colon, high_text = text.partition(":")
    if not colon:
        raise InputError(option, "", text, "a range of two sizes such as 1KB:1GB")
    low, high = parse_size(low_text, option), parse_size(high_text, option)
    if low > high:
        raise InputError(option, "", text, "the smaller size first")
    return low, high


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling of a size: 65536 is "64KB", 1000 is "1000"."""
    for suffix in ("GB", "MB", "KB"):
        if size_bytes % _SUFFIXES[suffix] == 0 and size_bytes:
            return f"{size_bytes // _SUFFIXES[suffix]}{suffix}"
    return str(size_bytes)


def transfer_us(size_bytes: float, gigabytes_per_s: float) -> float:
    """Microseconds that `size_bytes` take at `gigabytes_per_s`: 1 GB/s is 1000 bytes a microsecond."""
    return size_bytes / (gigabytes_per_s * 1e3)


def bandwidth_GBps(size_bytes: float, time_us: float) -> float:
    """GB/s of `size_bytes` moved in `time_us`; 0 for no time at all."""
    return size_bytes / time_us / 1e3 if time_us > 0 else 0.0
