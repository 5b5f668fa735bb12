"""The launcher process: parent of every sandbox process. Standard library only; it is forked into sandboxes."""
