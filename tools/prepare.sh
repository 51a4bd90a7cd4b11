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

# a file that shows the package is there | the package | why it is needed
base_packages() {
    cat <<'LIST'
/usr/bin/python3|python3|pytest runs on it
/usr/bin/cc|gcc|it compiles the native helper
/usr/include/stdlib.h|libc6-dev|the native helper is compiled with it
/usr/include/infiniband/verbs.h|libibverbs-dev|the native helper is compiled with it
LIST
}

missing_packages() { # functions that list packages as base_packages does
    local list file package why
    for list in "$@"; do
        while IFS='|' read -r file package why; do
            [ -e "$file" ] || echo "$package|$why"
        done < <($list)
    done
    [ -x .venv/bin/python ] || python3 -c 'import ensurepip, venv' 2>/dev/null ||
        echo "python3-venv|the project lives in a virtual environment of its own"
}

lab_packages() {
    python3 -m pytest_rdma.lab | sed 's/$/|the lab is two virtual machines of Debian, built here/'
}

apt_install() { # lines of package|why
    local line packages=()
    for line in "$@"; do
        echo "missing: ${line%%|*} (${line#*|})"
        packages+=("${line%%|*}")
    done
    say "installing with apt-get: ${packages[*]}"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"
}

install_packages() { # functions that list packages; the lab's own list needs python3, so it comes second
    local lines
    mapfile -t lines < <(missing_packages "$@")
    [ ${#lines[@]} = 0 ] || apt_install "${lines[@]}"
    mapfile -t lines < <(lab_packages)
    [ ${#lines[@]} = 0 ] || apt_install "${lines[@]}"
}

# The stamp holds what the environment was made from: a second run finds it and installs nothing. One with more extras
# will do. The sources are used where they are, and the helper is compiled when it is first needed.
install_environment() { # extras: benchmark, or benchmark,test
    local extras=$1 stamp
    stamp="$(cat pyproject.toml setup.py | sha256sum) $extras"
    [[ "$(cat .venv/prepared 2>/dev/null)" = "$stamp"* ]] && return
    say "making the virtual environment .venv with pytest-rdma[$extras]"
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
    echo "$stamp" >.venv/prepared
}
