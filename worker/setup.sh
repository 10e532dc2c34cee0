#!/usr/bin/env bash
# Prepares this machine as a worker, as `digirl-dist setup` does over SSH: worker/setup.sh [--dry-run] [emulator ...]
# Each step checks before it acts, so a second run changes nothing. Environment variables set the steps; see the files.
cd "$(dirname "$0")" || exit
if [ "${1:-}" = --dry-run ]; then
    DRY_RUN=yes
    shift
fi
for emulator in "$@"; do
    if [ ! -f "emulators/$emulator.sh" ]; then
        echo "no setup for emulator $emulator; there are: $(cd emulators && ls | sed 's/\.sh$//' | xargs)" >&2
        exit 2
    fi
done
source ./steps.sh
source ./python.sh
for emulator in "$@"; do
    source "emulators/$emulator.sh"
done
