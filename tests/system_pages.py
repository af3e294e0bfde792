"""What Linux says of a process's own memory."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages"
)


def in_large_pages(address: int, size: int) -> bool:
    """Whether large pages were asked for (the flag "hg" of proc(5)) for all whole pages of 4 KB of a range."""
    begin, end = -(-address // 4096) * 4096, (address + size) // 4096 * 4096
    mapped, inside = 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first == "VmFlags:":
            mapped += inside * ("hg" in rest)
        elif not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            inside = max(min(high, end) - max(low, begin), 0)
    return mapped == end - begin
