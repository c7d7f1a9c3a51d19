#!/bin/sh
# The nightly job: count the log of a day (yesterday's, if none is named), fit to all days, write that day's training files.
set -e
cd "$(dirname "$0")"
PATH=$PWD/.venv/bin:$PATH # cron knows only /usr/bin and /bin
day=${1:-$(date -d yesterday +%F)}

posbias collect "logs/$day.parquet" --date "$day" --into store --quiet
posbias fit store --decay 0.98 -o fit --force --quiet
posbias weight "logs/$day.parquet" --propensities fit -o "training/$day" --force --quiet
