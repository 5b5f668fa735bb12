"""Pure rules: run specs, plans, run and lease states, evaluation, reports. No I/O, no clock, no environment."""
