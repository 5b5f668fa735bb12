"""The command line `longshore`: commands, the all-in-one local mode, the demo and the report page. No training or service logic."""
