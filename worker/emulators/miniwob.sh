# MiniWoB++ runs in headless Chromium. chromium-headless-shell, if the distribution has it, loads pages with half the
# work. digirl_dist/emulator/chromium.py has the same names.
browsers=(chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome)

first_of() { # prints the path of the first of these programs that exists
    local name path
    for name in "$@"; do
        path="$(command -v "$name")" && [ -x "$path" ] && echo "$path" && return
    done
    echo "none of these is on PATH: $*" >&2
    return 1
}

chromium_is_good() {
    local browser
    browser="$(first_of "${browsers[@]}")" || return
    if ! "$browser" --version 2>/dev/null | grep -qE '[0-9]'; then
        echo "$browser does not run"
        return 1
    fi
}

install_chromium() { # does not ask apt-cache first, because a new machine has no package lists yet
    if grep -qE '^ID(_LIKE)?=.*ubuntu' /etc/os-release; then
        debian_packages chromium-browser
        return
    fi
    debian_packages chromium || return
    if apt-cache show chromium-headless-shell >/dev/null 2>&1; then
        debian_packages chromium-headless-shell
    fi
}

step "Chromium" chromium_is_good install_chromium
