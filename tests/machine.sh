# A virtual machine with Debian and its systemd, in qemu without hardware virtualisation; sourced by
# the suites. Its disks are files in the test's folder:
#
#   qemu -- NBD -- nbdkit, which holds what was not flushed -- file
#
# The guest's flush makes nbdkit write it down. A power cut kills qemu, and with it the guest's page
# cache, and nbdkit, and with it each write that no flush followed.
#
# A service of the guest, the agent, runs the commands that it reads from a port of the machine, and
# writes their output there.

source "$ROOT/scripts/kernels.sh"

DISKS=(root journal generations scratch)
# The limit of a boot, and of one command, on a busy machine.
TIMEOUT=600

# A bare Debian 12, made once.
bare_debian() { # prints its folder
    local folder=$TARGET/machine/bookworm
    (
        mkdir -p "$TARGET/machine"
        exec {lock}>"$TARGET/machine/lock"
        flock "$lock"
        [[ ! -e $folder ]] || exit 0
        rm -rf "$folder.new"
        debootstrap --variant=minbase \
            --include=systemd,systemd-sysv,udev,kmod,dbus,libpam-systemd,fuse3,e2fsprogs,python3 \
            bookworm "$folder.new" >"$TARGET/machine/debootstrap.log" 2>&1 || {
            tail -n 20 "$TARGET/machine/debootstrap.log" >&2
            exit 1
        }
        rm -rf "$folder.new"/var/cache/apt/* "$folder.new"/var/lib/apt/lists/*
        mv "$folder.new" "$folder"
    ) || fail "debootstrap failed"
    printf '%s\n' "$folder"
}

# The root's disk: Debian with the modules of a kernel, the agent, an ordinary user, and the files
# that the test brings.
root_disk() { # KERNEL'S FOLDER, FILE…
    local kernel=$1 stage=$WORK/stage
    shift
    cp -a "$(bare_debian)" "$stage"
    mkdir -p "$stage"/{lib/modules,srv/test,var/log/journal}
    cp -a "$kernel"/lib/modules/* "$stage/lib/modules/"
    chroot "$stage" depmod "$(basename "$kernel"/lib/modules/*)"
    cp -r "$@" "$stage/srv/test/"
    printf 'machine\n' >"$stage/etc/hostname"
    printf '127.0.0.1 localhost machine\n' >"$stage/etc/hosts"
    printf '/dev/vda / ext4 errors=remount-ro 0 1\n' >"$stage/etc/fstab"
    chroot "$stage" useradd --create-home --shell /bin/bash user
    chroot "$stage" chpasswd <<<user:password
    # A login for the user, beside the console with the kernel's messages.
    ln -s /lib/systemd/system/serial-getty@.service "$stage/etc/systemd/system/getty.target.wants/serial-getty@ttyS1.service"
    ln -sf /dev/null "$stage/etc/systemd/system/serial-getty@ttyS0.service"
    # Nothing here uses them, and each boot takes time.
    local unit
    for unit in apt-daily{,-upgrade}.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
        systemd-timesyncd.service systemd-networkd.service; do
        ln -sf /dev/null "$stage/etc/systemd/system/$unit"
    done
    cat >"$stage/usr/local/sbin/agent" <<'ENDAGENT'
#!/bin/bash
# Each line is a script in base64. Its output is followed by its status.
exec <>/dev/virtio-ports/agent >&0
printf 'guest-booted %s\n' "$(systemctl is-system-running --wait)"
while read -r line; do
    bash -Eeuo pipefail -c "$(base64 -d <<<"$line")" </dev/null 2>&1
    printf '\nguest-status %s\n' $?
done
ENDAGENT
    chmod 755 "$stage/usr/local/sbin/agent"
    cat >"$stage/etc/systemd/system/agent.service" <<'ENDUNIT'
[Unit]
Description=Commands of the test
BindsTo=dev-virtio\x2dports-agent.device
After=dev-virtio\x2dports-agent.device

[Service]
ExecStart=/usr/local/sbin/agent
StandardError=journal
# The scripts see what root sees at a login.
Environment=HOME=/root LC_ALL=C.UTF-8

[Install]
WantedBy=multi-user.target
ENDUNIT
    ln -s /etc/systemd/system/agent.service "$stage/etc/systemd/system/multi-user.target.wants/"
    truncate -s 2G root.img
    mke2fs -q -F -t ext4 -d "$stage" root.img
    rm -rf "$stage"
}

# machine KERNEL FILE…: makes a machine with this kernel (a name for scripts/kernels.sh) and these
# files in /srv/test, and empty disks: two of 256 MiB, and a small one.
machine() {
    local folder
    needs qemu-system-x86_64 busybox cpio nbdkit debootstrap xz flock
    folder=$(kernel "$(kernel_package "$1")")
    shift
    ram_disk "$folder" /sbin/init "$WORK/ram"
    root_disk "$folder" "$@"
    truncate -s 256M journal.img generations.img
    truncate -s 1M scratch.img
    KERNEL=$(kernel_image "$folder")
}

# Boots the machine, and waits until systemd has done all that a boot starts. Its judgement is in
# BOOTED: running, or degraded if a unit failed.
power_on() {
    local disk drives=() port
    POWER=()
    for disk in "${DISKS[@]}"; do
        rm -f "$disk.socket"
        # The cache is a file without a name in TMPDIR, so it ends with the process.
        TMPDIR=$WORK nbdkit --foreground --unix "$WORK/$disk.socket" --filter=cache file "$WORK/$disk.img" cache=writeback &
        POWER+=($!)
        drives+=(-drive "file=nbd+unix:///?socket=$WORK/$disk.socket,if=virtio,format=raw,cache=writeback")
    done
    for disk in "${DISKS[@]}"; do wait_until "nbdkit" test -S "$disk.socket"; done
    for port in agent login; do
        rm -f $port.{in,out}
        mkfifo $port.{in,out}
    done
    # Open for both directions, so that neither side waits for the other.
    exec {TO_AGENT}<>agent.in {FROM_AGENT}<>agent.out {TO_LOGIN}<>login.in {FROM_LOGIN}<>login.out
    printf '\n--- power on\n' >>console
    qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 1G -nodefaults -no-reboot -display none \
        -kernel "$KERNEL" -initrd ram -append "console=ttyS0 root=/dev/vda panic=-1 mitigations=off" \
        "${drives[@]}" -device virtio-rng-pci \
        -chardev "file,id=console,path=console,append=on" -serial chardev:console \
        -chardev pipe,id=login,path=login -serial chardev:login \
        -device virtio-serial-pci -chardev pipe,id=agent,path=agent -device virtserialport,chardev=agent,name=agent &
    QEMU=$!
    cat <&"$FROM_LOGIN" >>login.log &
    READER=$!
    BOOTED=$(answer | sed -n 's/^guest-booted //p')
    [[ -n $BOOTED ]] || fail "the machine did not boot"
}

# Prints lines of the agent until one that begins with guest-, and that one.
answer() {
    local line='' part='' start=$SECONDS
    while ((SECONDS - start < TIMEOUT)) && kill -0 $QEMU 2>/dev/null; do
        if IFS= read -r -t 5 -u "$FROM_AGENT" part; then
            line+=$part
            printf '%s\n' "$line"
            [[ $line != guest-* ]] || return 0
            line=''
        else
            line+=$part
        fi
    done
    printf 'FAIL: no answer of the machine; its console: %s\n' "$(tail -n 40 console)" >&2
    return 1
}

send() { printf '%s\n' "$(base64 -w0 <<<"$1")" >&"$TO_AGENT"; }

# guest SCRIPT: runs commands as root in the machine and prints their output.
guest() {
    local status
    send "$1"
    answer >answer || fail "no answer to: $1"
    status=$(sed -n 's/^guest-status //p' answer)
    # The line before the status is the agent's.
    sed '$d' answer | sed '${/^$/d}'
    [[ $status == 0 ]] || fail "in the machine, with status $status: $1: $(cat answer)"
}

# Returns when the machine has switched itself off, and closes its disks.
powered_off() {
    local i
    for ((i = 0; i < TIMEOUT; i++)); do
        kill -0 $QEMU 2>/dev/null || break
        sleep 1
    done
    ! kill -0 $QEMU 2>/dev/null || fail "the machine does not end; its console: $(tail -n 40 console)"
    wait $QEMU || fail "qemu failed"
    kill "${POWER[@]}" $READER
    wait "${POWER[@]}" $READER || true
    exec {TO_AGENT}<&- {FROM_AGENT}<&- {TO_LOGIN}<&- {FROM_LOGIN}<&-
}

# A command of systemctl that ends the machine.
shut_down() { # reboot | poweroff
    send "systemctl $1"
    powered_off
}

# The disks end first: writes and flushes that qemu sends afterwards fail.
power_cut() {
    kill -KILL "${POWER[@]}" $QEMU
    wait "${POWER[@]}" $QEMU 2>/dev/null || true
    # The last output may be on its way.
    sleep 0.5
    kill $READER
    wait $READER 2>/dev/null || true
    exec {TO_LOGIN}<&- {FROM_LOGIN}<&-
}

# Copies a file from the root's disk.
root_file() { # DISK, PATH IN THE MACHINE, FILE
    debugfs -R "dump $2 $3" "$1" 2>/dev/null
    [[ -s $3 ]] || fail "$2 is not on the machine's disk"
}
