"""How much memory this rank has taken."""

import resource

_KIB = 1024.0


def peak_rss_bytes() -> float:
    """Largest resident size of this process since its start, bytes (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
