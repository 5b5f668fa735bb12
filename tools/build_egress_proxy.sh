#!/usr/bin/env bash
# Builds the egress proxy of allowlist sandboxes, static and reproducible: tools/build_egress_proxy.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${1:-build/egress-proxy/egress-proxy}")
command -v go >/dev/null || { echo "build_egress_proxy: no Go toolchain; install Go 1.25 or later (go.dev/dl)" >&2; exit 1; }
mkdir -p "$(dirname "$out")"
CGO_ENABLED=0 go build -C services/sandbox-scheduler/egress-proxy -trimpath -buildvcs=false -ldflags "-s -w" -o "$out" .
echo "$out"
