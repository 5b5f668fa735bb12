#!/bin/bash
# dependencies.sh PINS [DEBIAN PACKAGES...]: everything but our own code, in one layer: system packages, the user, and
# the virtual environment /opt/longshore with hashed pins.
. "$(dirname "$0")/tools.sh"
pins=$1; shift

if [ $# -gt 0 ]; then
  apt-get update -qq -o "Acquire::https::CaInfo=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
fi
echo "longshore:x:10001:10001::/tmp:/usr/sbin/nologin" >>/etc/passwd   # Libraries ask who they are.
echo "longshore:x:10001:" >>/etc/group

make_tools
python3 -m venv --without-pip /opt/longshore
"$TOOLS/bin/uv" pip sync -q --no-cache --compile-bytecode --python /opt/longshore/bin/python --require-hashes "$steps/$pins.txt"
# The official Python images have no bytecode of the standard library, and a read-only root never gets any.
python3 -m compileall -q --invalidation-mode unchecked-hash "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
  -x '/(test|tests|lib2to3|site-packages|dist-packages)/' || true
