"""On what device, and from which code, the numbers were made."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch


@cache
def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor() or "cpu")


@cache
def commit() -> str:
    """The commit of the code; on a machine without git, what ISOTHERM_COMMIT says."""
    if told := os.environ.get("ISOTHERM_COMMIT"):
        return told
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=8"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
