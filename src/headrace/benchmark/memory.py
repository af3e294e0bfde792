"""How much memory this process has had."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """The most bytes that this process ever had in memory."""
    try:
        # Not `getrusage`, which on Linux begins with what the process had that started this one.
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
