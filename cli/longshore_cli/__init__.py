"""The command line `longshore`: commands, all-in-one local mode, demo, report page. No training or service logic."""
