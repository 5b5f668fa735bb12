"""The local runtime: bubblewrap over a table of local base trees, without root or Docker."""
