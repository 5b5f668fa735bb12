#!/bin/sh
# Tells the first rule that report.txt breaks.
cd /app || exit 1
[ -f report.txt ] || { echo "report.txt is missing: one line per customer, 'name total'"; exit 1; }
awk 'NF != 2 { exit 1 }' report.txt || { echo "a line is not 'name total'"; exit 1; }
[ "$(cut -d' ' -f1 report.txt | sort -u | wc -l)" = "$(wc -l < report.txt)" ] || { echo "a customer has two lines"; exit 1; }
paid=$(awk -F, '$3 == "paid" { sum += $2 } END { print sum }' orders.csv)
[ "$(awk '{ sum += $2 } END { print sum }' report.txt)" = "$paid" ] || { echo "only orders in state paid count"; exit 1; }
sort -k2,2nr report.txt | cmp -s - report.txt || { echo "the largest total comes first"; exit 1; }
echo ok
