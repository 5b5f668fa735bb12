"""Other services that this one calls."""
