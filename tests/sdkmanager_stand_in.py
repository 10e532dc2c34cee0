"""A program that stands for Google's ``sdkmanager`` and ``avdmanager``: it makes the files that the real ones would."""

SDK_TOOL = """#!/bin/sh
sdk="$(cd "$(dirname "$0")/../../.." && pwd)"
avds="${ANDROID_AVD_HOME:-$HOME/.android/avd}"
echo "$(basename $0) $*" >> "$sdk/log"
case "$*" in
    *--licenses*) mkdir -p "$sdk/licenses"; echo 1 > "$sdk/licenses/android-sdk-license" ;;
    *platform-tools*) for p in platform-tools/adb emulator/emulator; do
        mkdir -p "$(dirname "$sdk/$p")"; echo > "$sdk/$p"; chmod +x "$sdk/$p"; done ;;
    *system-images*--device*) mkdir -p "$avds/pixel.avd"; echo "path=$avds/pixel.avd" > "$avds/pixel.ini"
        echo AvdId=pixel > "$avds/pixel.avd/config.ini" ;;
    *system-images*) mkdir -p "$sdk/system-images/android-34/google_apis/x86_64"
        echo > "$sdk/system-images/android-34/google_apis/x86_64/system.img" ;;
    "delete avd -n pixel") rm -r "$avds/pixel.ini" "$avds/pixel.avd" ;;
    *) exit 2 ;;
esac
"""
