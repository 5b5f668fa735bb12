# Sourced by the other steps: fail early, the builder's secrets, and what a build needs (uv, hatchling) in $TOOLS until it ends.
set -euo pipefail
steps=$(dirname "$(readlink -f "$0")")
# ca: a bundle of certificates. index: NAME=value lines of pip's and uv's variables, which may hold credentials.
if [ -s /run/secrets/ca ]; then
  export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca
fi
if [ -s /run/secrets/index ]; then
  set -a; . /run/secrets/index; set +a
fi
# Bytecode that is never compared with its source: no file system or copy can make it stale.
export PYC_INVALIDATION_MODE=UNCHECKED_HASH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

make_tools() {
  TOOLS=$(mktemp -d)
  trap 'rm -rf "$TOOLS"' EXIT
  python3 -m venv "$TOOLS"
  "$TOOLS/bin/pip" install -q --no-cache-dir --require-hashes -r "$steps/images.txt"
}
