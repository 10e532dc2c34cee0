# Android: command line tools, platform tools (adb), emulator, system image, AVD, and the right to use KVM.
# ANDROID_SDK, ANDROID_AVD_HOME: folders; ANDROID_AVD: the AVD's name; ANDROID_IMAGE: its system image;
# ANDROID_TOOLS_URL: source of the tools; ANDROID_ACCEPT_LICENSES=yes: the owner has read and accepts Google's licences.
sdk="${ANDROID_SDK:-$HOME/Android/Sdk}"
sdk="${sdk/#\~\//$HOME/}"
avds="${ANDROID_AVD_HOME:-$HOME/.android/avd}"
avds="${avds/#\~\//$HOME/}"
avd="${ANDROID_AVD:-}"
image="${ANDROID_IMAGE:-system-images;android-34;google_apis;x86_64}"
bin="$sdk/cmdline-tools/latest/bin"
export ANDROID_HOME="$sdk" ANDROID_AVD_HOME="$avds"

programs_are_there() { command -v java && command -v unzip && command -v curl; }

kvm_is_open() { # asks the group database, because a new membership takes effect at the next login
    [ -w /dev/kvm ] || { [ -e /dev/kvm ] && id -nG "$(id -un)" | tr ' ' '\n' | grep -qx "$(stat -c %G /dev/kvm)"; }
}

open_kvm() {
    if [ ! -e /dev/kvm ]; then
        echo "there is no /dev/kvm: switch on virtualisation in the BIOS, or nested virtualisation for this virtual machine"
        return 1
    fi
    as_root usermod -aG "$(stat -c %G /dev/kvm)" "$(id -un)"
}

known_tools_are_whole() { # an archive of another name is its owner's to trust
    [ "${ANDROID_TOOLS_URL##*/}" != commandlinetools-linux-11076708_latest.zip ] ||
        sha256sum --check --quiet <<<"2d2d50857e4eb553af5a6dc3ad507a17adf43d115264b1afc116f95c92e5e258  $1"
}

tools_are_there() { [ -x "$bin/sdkmanager" ] && [ -x "$bin/avdmanager" ]; }

get_tools() {
    local zip="$sdk/cmdline-tools/tools.zip"
    run mkdir -p "$sdk/cmdline-tools" &&
        run curl -fsSL --retry 3 -o "$zip" "$ANDROID_TOOLS_URL" &&
        run known_tools_are_whole "$zip" &&
        run unzip -q -o "$zip" -d "$sdk/cmdline-tools" &&
        run mv "$sdk/cmdline-tools/cmdline-tools" "$sdk/cmdline-tools/latest" &&
        run rm -f "$zip"
}

licences_are_accepted() { [ -s "$sdk/licenses/android-sdk-license" ]; }

accept_licences() {
    if [ "${ANDROID_ACCEPT_LICENSES:-}" != yes ]; then
        echo "read Google's licences with '$bin/sdkmanager --licenses'; if you accept them: install.android.accept_licenses=true"
        return 1
    fi
    run bash -c "yes | '$bin/sdkmanager' --sdk_root='$sdk' --licenses >/dev/null"
}

parts_are_there() { [ -x "$sdk/platform-tools/adb" ] && [ -x "$sdk/emulator/emulator" ]; }
get_parts() { run "$bin/sdkmanager" --sdk_root="$sdk" platform-tools emulator; }

image_is_there() { [ -e "$sdk/${image//;//}/system.img" ]; }
get_image() { run "$bin/sdkmanager" --sdk_root="$sdk" "$image"; }

avd_is_there() { [ -f "$avds/$avd.ini" ]; }
make_avd() { run "$bin/avdmanager" create avd --name "$avd" --package "$image" --device pixel_5; }

if [ -z "$avd" ]; then # devices by serial need only adb
    adb_is_there() { adb version || [ -x "$sdk/platform-tools/adb" ]; }
    step "adb" adb_is_there debian_packages adb
else
    step "Java, unzip and curl" programs_are_there debian_packages default-jre-headless unzip curl
    step "the right to use /dev/kvm" kvm_is_open open_kvm
    step "Android command line tools" tools_are_there get_tools
    step "licences of the Android SDK" licences_are_accepted accept_licences
    step "platform tools and emulator" parts_are_there get_parts
    step "system image $image" image_is_there get_image
    step "AVD $avd" avd_is_there make_avd
fi
