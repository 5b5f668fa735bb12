"""One module per noun; each only parses, calls a service and prints."""
