# shellcheck shell=bash
# Packages of Debian's archive, unpacked into directories of their own; for scripts that source this
# and have `say` and `die`.

updated=
apt_update() {
    [[ -n $updated ]] && return 0
    say "updating the package lists"
    apt-get -qq -o Acquire::Retries=3 update >&2
    updated=1
}

# The address of Debian's archive as this machine is set up to reach it. apt itself reads its
# sources (one-line or deb822); the release file's Origin tells Debian's archive from other
# repositories that name their suites alike.
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

# Sets `mirror`.
mirror=
need_mirror() {
    [[ -n $mirror ]] || mirror=$(find_mirror)
    if [[ -z $mirror ]]; then
        apt_update
        mirror=$(find_mirror)
    fi
    [[ -n $mirror ]] || die "apt's sources name no Debian archive of this release"
}

# Installs packages on this machine: for each word `command:package` whose command is not there.
install_tools() {
    local missing=() tool
    for tool in "$@"; do
        command -v "${tool%%:*}" >/dev/null || missing+=("${tool#*:}")
    done
    ((${#missing[@]})) || return 0
    apt_update
    say "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Use-Pty=0 install --yes --no-install-recommends "${missing[@]}" >/dev/null
}

# Unpacks packages of suite $1, and what they depend on, into directory $2: those of the list $3, by
# commas. Further arguments are mmdebstrap's. After need_mirror.
unpack_packages() {
    local suite=$1 root=$2 packages=$3 options=() line
    shift 3
    # How this machine's apt reaches its mirror (proxies and the like) goes for this root too.
    while IFS= read -r line; do
        options+=("--aptopt=$line")
    done < <(apt-config dump | grep -E '^Acquire::https?::' || true)
    # Release files of testing and unstable last a week; a mirror may serve older ones. Their
    # signatures are checked all the same.
    mmdebstrap --quiet --mode=root --variant=extract --format=directory --components=main \
        --include="$packages" "${options[@]}" \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Retries "3"' \
        "$@" "$suite" "$root" "$mirror"
}
