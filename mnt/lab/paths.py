"""Where labs keep what they need to know about themselves."""

from __future__ import annotations

import os
from pathlib import Path

# Holds one directory a lab, named as the lab is. The variable lets tests keep theirs apart.
LAB_ROOT = Path(os.environ.get("MNT_LAB_DIR", "/run/mnt-lab"))
