# Makes the snapshot from which instances of the AVD start, by booting the AVD once. It needs the installed package.
# ANDROID_SDK, ANDROID_AVD_HOME, ANDROID_AVD: as in emulators/android.sh; ANDROID_SNAPSHOT: its name; PACKAGE_PYTHON.
# ANDROID_SNAPSHOT_MODULE: what makes it, if not digirl_dist.emulator.android.snapshot.
sdk="${ANDROID_SDK:-$HOME/Android/Sdk}"
avds="${ANDROID_AVD_HOME:-$HOME/.android/avd}"
export ANDROID_HOME="${sdk/#\~\//$HOME/}" ANDROID_AVD_HOME="${avds/#\~\//$HOME/}"

snapshot_is_there() {
    local content
    content="$(sed -n 's/^path *= *//p' "$ANDROID_AVD_HOME/$ANDROID_AVD.ini")"
    [ -f "$content/snapshots/$ANDROID_SNAPSHOT/snapshot.pb" ]
}

make_snapshot() {
    run "${PACKAGE_PYTHON/#\~\//$HOME/}" -m "${ANDROID_SNAPSHOT_MODULE:-digirl_dist.emulator.android.snapshot}" "$ANDROID_AVD" "$ANDROID_SNAPSHOT"
}

if [ -n "${ANDROID_AVD:-}" ] && [ -n "${ANDROID_SNAPSHOT:-}" ]; then
    step "snapshot $ANDROID_SNAPSHOT of AVD $ANDROID_AVD" snapshot_is_there make_snapshot
fi
