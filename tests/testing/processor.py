"""Names the machine that measured something."""

import os
import platform
from pathlib import Path


def processor():
    """Returns the processor's model, or the architecture if the kernel does not name a model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    return f"{os.cpu_count()} cores of {processor()}"
