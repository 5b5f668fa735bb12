"""Makes the tools and the test cluster's kubectl importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/dashboards"), str(ROOT / "tests/cluster")]
