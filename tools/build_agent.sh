#!/usr/bin/env bash
# Builds the in-sandbox agent: build_agent.sh [OUT]; the same source gives the same bytes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:-$root/build/agent/longshore-agent}")
command -v go >/dev/null || { echo "error: no Go toolchain: install Go 1.26 or newer to build the in-sandbox agent" >&2; exit 2; }
mkdir -p "$(dirname "$out")"
cd "$root/services/sandbox-scheduler/agent"
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid=" -o "$out" .
echo "$out"
