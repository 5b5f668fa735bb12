#!/bin/sh
set -e
cd /app
page=$(sed -n 's/^next: //p' start.txt)
: > answer.txt
while [ "$page" != none ]; do
    sed -n 's/^word: //p' "$page" >> answer.txt
    page=$(sed -n 's/^next: //p' "$page")
done
