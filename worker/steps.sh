# The functions of setup steps: check, act, report. setup.sh sources them; `digirl-dist setup` sends them over SSH.
# A report is a line of STATE <tab> STEP <tab> MESSAGE with the states ok, would, doing, done and failed.
# DRY_RUN=yes: changes nothing; `run` only prints the commands.
set -uo pipefail
DRY_RUN="${DRY_RUN:-}"

step() { # step NAME CHECK ACTION [ARGUMENT ...]: runs ACTION unless CHECK succeeds; afterwards CHECK must succeed
    local name="$1" check="$2" output
    shift 2
    if "$check" >/dev/null 2>&1 </dev/null; then
        tell ok "$name" ""
        return
    fi
    [ -n "$DRY_RUN" ] || tell doing "$name" "$*"
    if ! output="$("$@" 2>&1 </dev/null)"; then
        give_up "$name" "$output"
    fi
    hash -r # a newly installed program may be elsewhere on PATH than the old one
    if [ -n "$DRY_RUN" ]; then
        tell would "$name" "$(sed -n 's/^+ //p' <<<"$output" | paste -sd ';')"
    elif ! output="$output"$'\n'"$("$check" 2>&1 </dev/null)"; then
        give_up "$name" "$output"$'\n'"the step ran, but its check still fails"
    else
        tell done "$name" ""
    fi
}

give_up() { # reports the failed command, then its last lines unchanged
    tell failed "$1" "$(sed -n 's/^+ //p' <<<"$2" | tail -n 1)"
    grep -v '^+ ' <<<"$2" | tail -n 15
    exit 1
}

tell() {
    printf '%s\t%s\t%s\n' "$1" "$2" "$3"
}

run() { # prints the command, and runs it unless this is a dry run
    echo "+ $*"
    [ -n "$DRY_RUN" ] || "$@"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        run "$@"
    elif sudo -n true 2>/dev/null; then
        run sudo -n "$@"
    else
        needs_root "$*"
    fi
}

needs_root() { # prints the command as an administrator has to type it
    echo "+ $1"
    echo "root or passwordless sudo is needed for this, and user $(id -un) has neither: let an administrator run it"
    return 1
}

debian_packages() {
    if ! command -v apt-get >/dev/null; then
        echo "this is neither Debian nor Ubuntu: install what these packages hold by hand: $*"
        return 1
    fi
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        needs_root "apt-get update && apt-get install -y --no-install-recommends $*"
        return
    fi
    as_root apt-get -o DPkg::Lock::Timeout=300 update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
}
