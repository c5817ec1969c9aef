# What the scripts that take something from Debian's archive have in common. Sourced by bash scripts
# with `set -euo pipefail`.
# shellcheck shell=bash

me=${0##*/}
say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

updated=
apt_update() {
    [[ -n $updated ]] && return 0
    say "updating the package lists"
    apt-get -qq -o Acquire::Retries=3 update >&2
    updated=1
}

# Installs what is missing. Each argument is the command that shows that it is there (or the path of a
# file), a colon and the package that has it.
install_tools() {
    local missing=() tool
    for tool in "$@"; do
        command -v "${tool%%:*}" >/dev/null || [[ -e ${tool%%:*} ]] || missing+=("${tool#*:}")
    done
    ((${#missing[@]})) || return 0
    apt_update
    say "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Use-Pty=0 install --yes --no-install-recommends "${missing[@]}" >/dev/null
}

# The address of Debian's archive as this machine is set up to reach it; nothing if it is not. apt
# itself reads its sources (one-line or deb822); the release file's Origin tells Debian's archive from
# other repositories that name their suites alike.
find_mirror() {
    local codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    [[ -n $codename ]] || die "/etc/os-release names no VERSION_CODENAME: is this Debian?"
    # shellcheck disable=SC2016 # $(...) is apt's own notation here
    apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)' \
        'Created-By: Packages' |
        awk -F'|' -v codename="$codename" '
            $1 == "Debian" && $2 == codename && $3 == "main" && !found { print $4; found = 1 }'
}

# The same, where there must be one.
need_mirror() {
    local mirror
    mirror=$(find_mirror)
    if [[ -z $mirror ]]; then
        apt_update
        mirror=$(find_mirror)
    fi
    [[ -n $mirror ]] || die "apt's sources name no Debian archive of this release"
    printf '%s\n' "$mirror"
}

# The options with which mmdebstrap reaches the archive, one a line: how this machine's apt does
# (proxies and the like). Release files of testing and unstable last a week, and a mirror may serve
# older ones; their signatures are checked all the same.
apt_options() {
    apt-config dump | sed -nE '/^Acquire::https?::/s/^/--aptopt=/p'
    printf '%s\n' '--aptopt=Acquire::Check-Valid-Until "false"' '--aptopt=Acquire::Retries "3"'
}
