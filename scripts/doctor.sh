#!/bin/sh
# Says at once what this machine lacks to build elasticdl, and the command that gets it.
#
#   scripts/doctor.sh            what `make build` needs; silent if all is there
#   scripts/doctor.sh check      also what `make check` needs
#   scripts/doctor.sh --python   print the Python to use
set -u

min_rust=1.90 # rust-version in Cargo.toml
missing=''
apt=''
advice=''
has_rust=no

lacks() { # what, Debian packages that bring it
    missing="$missing
  - $1"
    apt="$apt $2"
}

advises() { # a command other than apt-get
    advice="$advice
    $1"
}

find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] && "$candidate" -c '
import sys
sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

check_python() {
    if ! python=$(find_python); then
        found=$(python3 --version 2>/dev/null || echo 'no python3')
        lacks "Python 3.11 to 3.13 (found: $found)" 'python3.11 python3.11-venv'
    elif ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        lacks "the venv module of $python" "python$version-venv"
    fi
}

check_compiler() {
    if ! command -v cc >/dev/null 2>&1; then
        lacks 'a C compiler (cc)' build-essential
        return
    fi
    scratch=$(mktemp -d) || return
    printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' >"$scratch/a.c"
    cc "$scratch/a.c" -o "$scratch/a" >/dev/null 2>&1 ||
        lacks 'a C compiler that works (cc cannot build a program; no headers or no linker)' \
            build-essential
    rm -rf "$scratch"
}

# Whether version $1 is at least $2; major and minor count.
at_least() {
    major=${1%%.*}
    minor=${1#*.}
    minor=${minor%%.*}
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "$minor" -ge "${2#*.}" ]; }
}

check_rust() {
    found=none
    if command -v cargo >/dev/null 2>&1; then
        found=$(rustc --version 2>/dev/null) || found='a rustc that does not run'
        version=${found#rustc }
        version=${version%% *}
        case $version in
        [0-9]*.[0-9]*) at_least "$version" "$min_rust" && has_rust=yes && return ;;
        esac
    fi
    wanted="Rust $min_rust or newer, with cargo (found: $found)"
    if command -v rustup >/dev/null 2>&1; then
        lacks "$wanted" ''
        advises 'rustup toolchain install stable && rustup default stable'
    else
        lacks "$wanted" 'cargo-web rustc-web rustfmt-web rust-web-clippy'
    fi
}

check_rust_tools() {
    for tool in rustfmt clippy; do
        program=cargo-clippy package=rust-web-clippy
        [ "$tool" = rustfmt ] && program=rustfmt package=rustfmt-web
        "$program" --version >/dev/null 2>&1 && continue
        if command -v rustup >/dev/null 2>&1; then
            lacks "$tool" ''
            advises "rustup component add $tool"
        else
            lacks "$tool" "$package"
        fi
    done
}

if [ "${1:-}" = --python ]; then
    find_python
    exit
fi

check_python
check_compiler
check_rust
[ "${1:-}" = check ] && [ "$has_rust" = yes ] && check_rust_tools

if [ -n "$missing" ]; then
    sudo=''
    [ "$(id -u 2>/dev/null || echo 0)" = 0 ] || sudo='sudo '
    # Unquoted: one word for each package.
    # shellcheck disable=SC2086
    packages=$(printf ' %s' $apt)
    [ "$packages" = ' ' ] ||
        advice="
    ${sudo}apt-get update && ${sudo}apt-get install -y$packages$advice"
    {
        echo "elasticdl cannot be built on this machine yet. It lacks:$missing"
        echo "On Debian 12 this gets it:$advice"
        echo 'Then run make again.'
    } >&2
    exit 1
fi
