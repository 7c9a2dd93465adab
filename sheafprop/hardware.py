"""What a figure was measured on."""

import os
import resource
import sys
from pathlib import Path

import torch


def describe_hardware() -> str:
    """Cores, processor and memory (and GPU) in one line."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    parts = [f"{len(usable) or os.cpu_count()} cores"]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                parts.append(line.split(":", 1)[1].strip())
                break
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        parts.append(f"{memory / 2**30:.0f} GiB")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
    return ", ".join(parts)


def peak_bytes() -> int:
    """Most memory this process has held so far, libraries included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
