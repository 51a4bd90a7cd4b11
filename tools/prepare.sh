# Sourced by quickstart and run-tests: what this machine lacks is installed once, with a word of why.

say() { printf '\n== %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "$0: this needs root and there is no sudo: $*" >&2
        exit 1
    fi
}

# name of a file that shows the package is there | package | why
apt_needs() {
    cat <<'LIST'
/usr/bin/python3|python3|pytest runs on it
/usr/lib/python3/dist-packages/ensurepip-or-venv|python3-venv|the project lives in a virtual environment of its own
/usr/bin/qemu-system-x86_64|qemu-system-x86|the lab is two virtual machines
/usr/bin/mmdebstrap|mmdebstrap|builds the root file system of the lab
/usr/bin/ssh|openssh-client|ssh and ssh-keygen for the lab
/usr/bin/cc|gcc|compiles the native helper
/usr/include/stdlib.h|libc6-dev|compiles the native helper
/usr/include/infiniband/verbs.h|libibverbs-dev|compiles the native helper
LIST
}

install_apt_packages() {
    local missing=() file package why
    while IFS='|' read -r file package why; do
        case $package in
        python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
        *) [ -e "$file" ] && continue ;;
        esac
        echo "missing: $package ($why)"
        missing+=("$package")
    done < <(apt_needs; "${extra_apt_needs[@]:-true}")
    [ ${#missing[@]} = 0 ] && return
    say "installing with apt-get: ${missing[*]}"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The stamp holds what the environment was made from: a second run finds it and installs nothing.
install_environment() { # extras, e.g. benchmark,test
    local extras=$1 stamp
    stamp=$(cat pyproject.toml setup.py pytest_rdma/native/*.[ch] | sha256sum; echo "$extras")
    [ "$(cat .venv/prepared 2>/dev/null)" = "$stamp" ] && return
    say "making the virtual environment .venv with pytest-rdma[$extras]"
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
    echo "$stamp" >.venv/prepared
}
