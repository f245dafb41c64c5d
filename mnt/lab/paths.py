"""The directory where labs store their state."""

from __future__ import annotations

import os
from pathlib import Path

# It contains one directory per lab, with the name of the lab. Tests set the variable to use their own.
LAB_ROOT = Path(os.environ.get("MNT_LAB_DIR", "/run/mnt-lab"))
