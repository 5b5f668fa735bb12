#!/usr/bin/env bash
# Regenerate the agent's Go code from proto/. Without arguments in place; with a folder, there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
agent=$root/services/sandbox-scheduler/agent
out=${1:-$agent/gen}
module=longshore.dev/agent/gen
proto=longshore/agent/v1/agent.proto
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
(cd "$agent" && GOBIN=$plugins go install tool)
mkdir -p "$out"
cd "$root/proto"
PATH=$plugins:$PATH python -m grpc_tools.protoc -I. \
  --go_out="$out" --go_opt="module=$module,M$proto=$module/agentv1" \
  --go-grpc_out="$out" --go-grpc_opt="module=$module,M$proto=$module/agentv1" "$proto"
