#!/usr/bin/env bash
# Fails when gen/python or the agent's gen is not what proto/ generates.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
tools/generate_protos.sh "$fresh"
diff -r -x __pycache__ gen/python/longshore "$fresh/longshore" || { echo "error: gen/python is out of date; run make proto" >&2; exit 1; }
if command -v go > /dev/null; then
  tools/generate_go.sh "$fresh/go"
  diff -r services/sandbox-scheduler/agent/gen "$fresh/go" || { echo "error: the agent's gen is out of date; run tools/generate_go.sh" >&2; exit 1; }
else
  echo "no Go toolchain: the agent's generated code is not checked" >&2
fi
