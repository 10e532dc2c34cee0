# MiniWoB++ runs in headless Chromium, which is driven by a chromedriver of the same version. chromium-headless-shell,
# where there is one, loads pages with half the work. (The names are those of digirl_dist/emulator/chromium.py.)
browsers=(chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome)

first_of() { # the first of these programs that there is
    local name path
    for name in "$@"; do
        path="$(command -v "$name")" && [ -x "$path" ] && echo "$path" && return
    done
    echo "none of these is on PATH: $*" >&2
    return 1
}

major() {
    "$1" --version 2>/dev/null | grep -oE '[0-9]+' | head -n 1
}

chromium_is_good() {
    local browser driver
    browser="$(first_of "${browsers[@]}")" && driver="$(first_of chromedriver)" || return
    if [ "$(major "$browser")" != "$(major "$driver")" ] || [ -z "$(major "$browser")" ]; then
        echo "$browser has version $(major "$browser"), $driver has $(major "$driver"): they must agree"
        return 1
    fi
}

install_chromium() { # not by what apt-cache shows: a new machine has no lists of packages yet
    if grep -qE '^ID(_LIKE)?=.*ubuntu' /etc/os-release; then
        debian_packages chromium-browser chromium-chromedriver
        return
    fi
    debian_packages chromium chromium-driver || return
    if apt-cache show chromium-headless-shell >/dev/null 2>&1; then
        debian_packages chromium-headless-shell
    fi
}

step "Chromium and its driver" chromium_is_good install_chromium
