# Messages and paths for the scripts that source this file.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
XACT=$TARGET/release/xact
# Tools from crates are installed here if the machine does not have them.
TOOLS=$TARGET/tools

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    BOLD=$'\e[1m' GREEN=$'\e[32m' RED=$'\e[31m' DIM=$'\e[2m' PLAIN=$'\e[0m'
else
    BOLD='' GREEN='' RED='' DIM='' PLAIN=''
fi

say() { printf '%s\n' "$*"; }
title() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }
die() {
    printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
    exit 1
}

# Git ignores the settings of the calling user and does not need them.
git_settings() {
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
    export GIT_CONFIG_KEY_1=init.defaultBranch GIT_CONFIG_VALUE_1=main
    export GIT_AUTHOR_NAME=xact GIT_AUTHOR_EMAIL=xact@example.org
    export GIT_COMMITTER_NAME=xact GIT_COMMITTER_EMAIL=xact@example.org
}

# Prints the path of a Git repository with this source in it: the one that it was cloned into, or,
# where the source came without its history, one made in FOLDER, a commit for each crate.
source_repository() { # FOLDER
    if git -C "$ROOT" rev-parse --is-inside-work-tree >/dev/null 2>&1 &&
        [[ $(git -C "$ROOT" rev-parse --show-toplevel) == "$ROOT" ]]; then
        printf '%s\n' "$ROOT"
        return
    fi
    local crate
    git init -q "$1"
    for crate in "$ROOT"/crates/*; do
        mkdir -p "$1/crates"
        cp -r "$crate" "$1/crates/"
        git -C "$1" add .
        git -C "$1" commit -q -m "$(basename "$crate")"
    done
    printf '%s\n' "$1"
}
