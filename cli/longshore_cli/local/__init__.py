"""The all-in-one mode: every service in one process on loopback, one home folder, one process per home."""
