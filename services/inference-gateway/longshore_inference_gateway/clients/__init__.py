"""What the gateway calls: engines (vLLM over HTTP, local child process) and the trajectory store."""
