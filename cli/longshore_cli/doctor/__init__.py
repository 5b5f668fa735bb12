"""Checks of this machine, each with a hint. Nothing here changes anything."""
