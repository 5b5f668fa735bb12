"""Shared fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by path (importlib mode), so their helpers need a place to be found.
sys.path.insert(0, str(Path(__file__).parent))
