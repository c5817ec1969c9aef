# The parts of scripts/vm-test. Sourced by it, and uses what it sets.
# shellcheck shell=bash
# shellcheck disable=SC2154 # what it sets

# The programs that the machine gets.
programs=(vramstream simulated-gpus gpu-app gpu-copier vramstream-workload)

# Builds the programs and the tests; sets `target`, where they are, and `test_binary`.
#
# They are those that the other tests run, so that they are built once. The dev profile optimises: in the
# machine, `vramstream selftest` takes a tenth more time than in release, and without their debug
# information all programs are 27 MB.
build_programs() {
    local message
    cargo build --quiet --workspace --locked
    target=${CARGO_TARGET_DIR:-target}/debug
    message=$(cargo test --quiet --locked --package vramstream-tests --features vm --test vm --no-run \
        --message-format=json-render-diagnostics | grep '"name":"vm"' | grep '"executable":"' || true)
    test_binary=$(sed -E 's/.*"executable":"([^"]*)".*/\1/' <<<"${message##*$'\n'}")
    [[ -x $test_binary ]] || die "cargo did not say where it has put the tests"
}

# One word for the contents of these files and folders.
digest() {
    find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16
}

# Makes the directory `$cache/NAME` with a command, unless it is there: `once NAME COMMAND...`, where the
# command gets an empty directory as its last argument. Prints its path.
once() {
    local dir=$cache/$1 lock
    shift
    exec {lock}>"$cache/.lock"
    flock -w 3600 "$lock" || die "another run has held $cache/.lock for an hour"
    if [[ ! -e $dir/done ]]; then
        # Not through what an interrupted one has left mounted.
        rm -rf --one-file-system -- "$dir"
        mkdir -p -- "$dir"
        "$@" "$dir" >&2 || die "$dir could not be made"
        touch -- "$dir/done"
    fi
    # Those that nobody has wanted for long make room.
    touch -- "$dir/used"
    find "$cache" -mindepth 2 -maxdepth 2 -name used -mtime +14 -printf '%h\0' | xargs -0 --no-run-if-empty rm -rf --one-file-system --
    find "$cache" -mindepth 1 -maxdepth 1 -name 'run.*' -mtime +1 -print0 | xargs -0 --no-run-if-empty rm -rf --one-file-system --
    exec {lock}>&-
    printf '%s\n' "$dir"
}

make_root() {
    tests/vm/make-root "$1" ${long:+"${layers[@]}"}
}

# The directory with the machine's root, kernel and initramfs, as tests/vm/make-root makes it.
cached_root() {
    local key
    layers=()
    [[ ! -e tests/vm/frameworks ]] || layers=("$PWD/tests/vm/frameworks")
    key=$(digest tests/vm/make-root tests/vm/initramfs ${long:+"${layers[@]}" scripts/frameworks-setup})
    once "root-$key" make_root
}

# Runs `make` in the machine's root, in a copy of directory $1 of the sources, and puts all that is there
# then into $2. The Makefile gets the kernel's version as KERNEL.
make_in_root() {
    local source=$1 out=$2 build
    build=$(mktemp -d -- "$root/root/tmp/build.XXXXXX")
    cp -r -- "$source/." "$build/"
    if ! chroot "$root/root" env -i PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8 \
        make --silent -C "${build#"$root/root"}" KERNEL="$(<"$root/version")" >"$out/log" 2>&1; then
        sed "s/^/$me: make: /" "$out/log" >&2
        rm -rf -- "$build"
        die "$source cannot be built"
    fi
    cp -r -- "$build/." "$out/"
    rm -rf -- "$build"
}

# The directory with directory $1 of the sources, built in the machine's root.
built() {
    once "built-$(digest "$1")-${root##*-}" make_in_root "$1"
}

# Which accelerator the machine can have: /dev/kvm may be there and yet not run a kernel.
accelerator() {
    local verdict
    if [[ -n ${VRAMSTREAM_VM_ACCEL:-} ]]; then
        printf '%s\n' "$VRAMSTREAM_VM_ACCEL"
        return
    fi
    [[ -w /dev/kvm ]] || { echo tcg && return; }
    verdict=$(once "kvm-$(cat /proc/version "$root/version" | sha256sum | cut -c 1-16)" try_kvm)
    cat -- "$verdict/accel"
}

try_kvm() {
    say "trying whether KVM runs the machine"
    timeout --kill-after=2 20 qemu-system-x86_64 -accel kvm "${hardware[@]}" -m 512 -smp 1 \
        -kernel "$root/vmlinuz" -initrd "$root/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1 vramstream.trial" \
        -serial "file:$1/console" </dev/null >"$1/log" 2>&1 || true
    if grep -q 'vramstream: the machine runs' "$1/console"; then echo kvm; else echo tcg; fi >"$1/accel"
}

# No graphics card: its driver would take the numbers of the render nodes.
# One processor where all is emulated: with two, QEMU 7.2 now and then executes an instruction that the kernel
# has patched on the other, the int3 of CRIU's breakpoints, and the kernel dies.
processors=1
hardware=(-cpu max -nodefaults -display none -vga none -no-reboot -no-user-config)

kernel_options=(console=ttyS0 quiet
    # QEMU ends when the kernel does.
    panic=-1 oops=panic
    # A machine that is emulated on a busy one stands still at times.
    nowatchdog rcupdate.rcu_cpu_stall_suppress=1
    # It has nothing to hide, and is slow.
    mitigations=off)

# What the kernel says when something is wrong with it, or with the module.
trouble='^\[ *[0-9.]+\] .*(BUG:|WARNING: CPU|Oops|Kernel panic)'

# Collects what the machine gets in directory $1.
pack() {
    local dir=$1 program installed criu path module app
    mkdir -p -- "$dir"/{bin,plugin,criu}
    for program in "${programs[@]}"; do
        strip --strip-debug -o "$dir/bin/$program" "$target/$program"
    done
    strip --strip-debug -o "$dir/bin/vm-tests" "$test_binary"
    strip --strip-debug -o "$dir/plugin/amdgpu_plugin.so" "$target/libvramstream.so"
    ln -s bin/vm-tests "$dir/tests"
    ln -s ../plugin/amdgpu_plugin.so "$dir/bin/libvramstream.so"
    # The root has one CRIU already; all others that are set up go with it.
    installed=$(dpkg-query --admindir="$root/root/var/lib/dpkg" --show --showformat='${Version}' criu)
    installed=${installed%-*}
    scripts/criu-setup | while read -r criu path; do
        [[ $criu != "$installed" ]] || continue
        path=$(dirname -- "$path")
        mkdir -p -- "$dir/criu/$criu/root/usr"
        cp -- "$path/criu" "$dir/criu/$criu/"
        cp -r -- "$path/root/usr/sbin" "$path/root/usr/lib" "$dir/criu/$criu/root/usr/"
        rm -rf -- "$dir/criu/$criu"/root/usr/lib/*/gconv
    done
    module=$(built tests/vm/module)
    mkdir -p -- "$dir/module"
    cp -- "$module"/*.ko "$dir/module/"
    if [[ -d tests/vm/app ]]; then
        app=$(built tests/vm/app)
        mkdir -p -- "$dir/app"
        find "$app" -maxdepth 1 -type f -executable -exec cp -t "$dir/app" -- {} +
    fi
    cp -- tests/vm/init "$dir/init"
    cp -r -- tests/frameworks "$dir/frameworks"
}

# Starts a machine with its logs in $1, called $2, with the address $3 in the network to which QEMU's options
# after it lead, if there is one; sets `pid`.
start() {
    local logs=$1 name=$2 address=${3:-} dir=$work/vm disk=$work/$2
    shift $(($# < 3 ? $# : 3))
    printf '%s\n' "limit=$limit" "host=$name" "address=$address" >"$dir/settings"
    printf '%s\n' "${arguments[@]}" >"$dir/arguments"
    tar --directory "$dir" --create --file "$disk.tar" --sort=name --owner=0 --group=0 .
    truncate --size=1G "$disk.results"
    : >"$logs/output"
    # As long as the tests may take, and the machine for itself; and not longer than this script.
    setpriv --pdeathsig TERM timeout --kill-after=5 $((limit + 120)) qemu-system-x86_64 \
        -name "$name" -accel "$accel" "${hardware[@]}" -m "$memory" -smp "$processors" \
        -kernel "$root/vmlinuz" -initrd "$root/initrd.gz" -append "${kernel_options[*]}" \
        -drive "file=$root/root.ext4,if=virtio,format=raw,snapshot=on" \
        -drive "file=$disk.tar,if=virtio,format=raw,readonly=on" \
        -drive "file=$disk.results,if=virtio,format=raw,cache=unsafe" \
        -serial "file:$logs/console" -serial "file:$logs/output" \
        "$@" </dev/null >"$logs/qemu" 2>&1 &
    pid=$!
    machines+=("$pid")
}

# Prints what the tests of the machine with the logs in $1 say until it ends, with $2 before each line.
show() {
    if [[ -z $2 ]]; then
        tail --pid="$pid" --lines=+1 --follow "$1/output" &
    else
        tail --pid="$pid" --lines=+1 --follow "$1/output" | sed --unbuffered "s/^/$2/" &
    fi
    shown=$!
}

# Waits for the end of the machine with the logs in $1, called $2 and run by process $3. Its status is 0 if
# tests have run and all is well, 1 if one has failed, 2 if the machine did not do what it should.
finish() {
    local logs=$1 end=0 status passed
    wait "$3" || end=$?
    wait "$shown" || true
    tar --directory "$logs" --extract --file "$work/$2.results" 2>/dev/null || true
    grep -aE "$trouble|blocked for more than" "$logs/console" |
        sed "s/^/$me: the machine's kernel: /" >&2 || true
    if [[ ! -f $logs/status ]]; then
        tail -n 20 "$logs/qemu" "$logs/console" >&2
        if ((end == 124 || end == 137)); then
            say "the machine did not come to an end"
        else
            say "the machine ended without results"
        fi
        return 2
    fi
    status=$(<"$logs/status")
    grep -a '^init: ' "$logs/console" | tr -d '\r' | sed "s/^init/$me/" >&2
    if ((status != 0)); then
        ((status != 124 && status != 137)) || say "the tests hung: $logs/processes says where"
        return 1
    fi
    passed=$(sed -nE 's/^test result: .* ([0-9]+) passed.*/\1/p' "$logs/output" | tail -n 1)
    if ((${passed:-0} == 0)); then
        say "no test has run"
        return 2
    fi
    if grep -qaE "$trouble" "$logs/console"; then
        say "the machine's kernel has complained"
        return 2
    fi
}

# Two machines with a network between them, and on each the tests of its side.
run_pair() {
    local side names status=0 socket=$work/network all=("${arguments[@]}") pids=() tails=() server=on number=1
    for side in source destination; do
        mkdir -- "$results/$side"
        names=$("$test_binary" --list --format terse "${all[@]}" | sed -n "s/^\(pair::$side::.*\): test$/\1/p")
        [[ -n $names ]] || die "there is no test pair::$side:: of these"
        mapfile -t arguments < <(printf '%s\n' --exact "$names")
        start "$results/$side" "$side" "10.7.0.$number/24" -device virtio-net-pci,netdev=net,host_mtu=9000 \
            -netdev "stream,id=net,server=$server,addr.type=unix,addr.path=$socket"
        show "$results/$side" "$side: "
        pids+=("$pid") tails+=("$shown")
        server=off number=$((number + 1))
        # The second machine connects to the first.
        until [[ -S $socket ]] || ! kill -0 "${pids[0]}" 2>/dev/null; do sleep 0.1; done
    done
    number=0
    for side in source destination; do
        shown=${tails[number]}
        finish "$results/$side" "$side" "${pids[number]}" || status=$?
        number=$((number + 1))
    done
    exit "$status"
}
