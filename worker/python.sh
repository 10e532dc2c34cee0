# Installs the Python that creates the package's environment. PYTHON: its command (worker_python).
PYTHON="${PYTHON:-python3}"
PYTHON="${PYTHON/#\~\//$HOME/}"

python_is_good() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || return
    "$PYTHON" -c 'import venv, ensurepip' || PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin" command -v uv
}

install_python() {
    if [ "$PYTHON" != python3 ]; then
        echo "$PYTHON must be Python 3.10 or newer with the module venv: install it, or set worker_python to another"
        return 1
    fi
    debian_packages python3 python3-venv
}

step "Python 3.10 or newer with venv" python_is_good install_python
