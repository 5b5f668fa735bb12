#!/bin/sh
set -e
cd /app
mkdir -p backup
sed -i 's|^SOURCE=.*|SOURCE=/app/archive/current|; s|^SUFFIX=.*|SUFFIX=.note|' conf/backup.conf
sh backup.sh
