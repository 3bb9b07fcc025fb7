# timeout: 180
# The daemon as a service: its notes to the service manager, its log, its units, and systemd itself.

test_readiness_and_end_are_reported() {
    needs python3
    volume disk.img
    mkdir mnt
    # Stands in for the service manager: notes when the mount is usable as the note arrives.
    python3 -c '
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("notify")
while True:
    text = s.recv(4096).decode()
    print(os.path.ismount("mnt"), text.split("\n"), flush=True)
' >notes &
    local manager=$!
    wait_until "the socket" test -S notify
    NOTIFY_SOCKET=$WORK/notify in_foreground disk.img mnt
    wait_until "the first note" grep -q READY notes
    unmounted mnt
    wait "$DAEMON"
    wait_until "the last note" grep -q STOPPING notes
    equal notes "True ['READY=1', 'STATUS=$WORK/disk.img on $WORK/mnt']
False ['STOPPING=1', 'STATUS=closing the volume']" "$(<notes)"
    # In the background, the service manager learns the daemon's number.
    NOTIFY_SOCKET=$WORK/notify mounted disk.img mnt
    local pid
    pid=$(sed -nE "s/.*'MAINPID=([0-9]+)'.*/\1/p" notes)
    equal "the daemon" "$XACT" "$(readlink "/proc/$pid/exe")"
    unmounted mnt
    # A manager that is not there does not matter.
    kill $manager
    NOTIFY_SOCKET=$WORK/no/such mounted disk.img mnt --log log
    has log 'INFO .*: mounted '
    unmounted mnt
    sound disk.img
}

# A line at the mount and at the unmount, and nothing on the terminal.
test_mounts_are_logged() {
    needs jq
    volume disk.img
    mkdir mnt
    "$XACT" mount disk.img mnt --log log >said 2>&1
    unmounted mnt
    "$XACT" mount disk.img mnt >>said 2>&1
    unmounted mnt
    "$XACT" mount disk.img mnt -o ro --log log >>said 2>&1
    unmounted mnt
    equal said '' "$(<said)"
    equal "lines in the log" 4 "$(grep -cE " INFO  mount=$WORK/mnt: (un)?mounted $WORK/disk.img" log)"
    has log "mounted $WORK/disk.img \\(UUID $("$XACT" info --json disk.img | jq -r .uuid)\\)$"
    has log ' read-only$'
}

test_the_daemon_is_killed_last() {
    volume disk.img
    if (echo -900 >"/proc/$BASHPID/oom_score_adj") 2>/dev/null; then
        in_foreground disk.img mnt
        equal score -900 "$(cat "/proc/$DAEMON/oom_score_adj")"
        unmounted mnt
        wait "$DAEMON"
    else
        report "not tested: this system denies root to lower a score"
    fi
    # Another value was set on purpose.
    echo 500 >"/proc/$$/oom_score_adj"
    in_foreground disk.img mnt
    equal score 500 "$(cat "/proc/$DAEMON/oom_score_adj")"
    unmounted mnt
    wait "$DAEMON"
}

# Prints the exposure of a unit, from 0 (none) to 100, as systemd-analyze judges.
exposure() { # UNIT
    systemd-analyze security --offline=true --no-pager "$1" | sed -nE 's/.*Overall exposure level for .*: ([0-9]+)\.([0-9]).*/\1\2/p'
}

test_units_are_valid_and_hardened() {
    needs systemd-analyze
    PATH=$PATH "$ROOT/scripts/install" "$WORK/usr" >/dev/null
    local unit
    for unit in usr/lib/systemd/system/xact@.service usr/lib/systemd/user/xact@.service; do
        has "$unit" "^ExecStart=$WORK/usr/bin/xact mount --foreground"
        lacks "$unit" '[= ]/usr/bin/xact'
    done
    systemd-analyze verify --man=no usr/lib/systemd/system/xact@.service 2>said || fail "verify: $(<said)"
    XDG_RUNTIME_DIR=$WORK systemd-analyze verify --man=no --user usr/lib/systemd/user/xact@.service 2>>said || fail "verify: $(<said)"
    equal "remarks of systemd-analyze" '' "$(<said)"
    local exposed
    exposed=$(exposure usr/lib/systemd/system/xact@.service)
    report "exposure of xact@.service: ${exposed%?}.${exposed: -1} of 10"
    [[ $exposed -le 50 ]] || fail "xact@.service is exposed: $exposed"
    "$ROOT/scripts/install" --remove "$WORK/usr" >/dev/null
    [[ -z $(find usr -name '*.service') ]] || fail "units are left"
}

# Boots systemd, as the first process of a process namespace, on a copy of this system's root in
# FOLDER that the test discards. It starts what a system starts for its volumes, and then runs the
# commands of FILE; their output is printed. Units that would change this machine's kernel or
# devices are masked.
boot() { # FOLDER FILE
    local folder=$1 group=/sys/fs/cgroup/systemd/xact-test.$$ unit
    [[ -d /sys/fs/cgroup/systemd ]] || group=/sys/fs/cgroup/xact-test.$$
    mkdir -p "$folder"/{up/etc/systemd/system,work,root} "$group"
    for unit in systemd-{udevd,udev-trigger,tmpfiles-setup-dev,logind,networkd,resolved,timesyncd,sysctl,binfmt}.service \
        systemd-{modules-load,remount-fs,update-utmp,random-seed,journal-flush}.service systemd-journald-audit.socket \
        proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount \
        sys-kernel-tracing.mount dbus.service dbus.socket console-getty.service getty@.service cron.service; do
        ln -sfn /dev/null "$folder/up/etc/systemd/system/$unit"
    done
    cp "$2" "$folder/up/commands"
    : >"$folder/up/output"
    cat >"$folder/up/etc/systemd/system/commands.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'bash -Eeuo pipefail /commands >/output 2>&1; echo "status $?" >>/output; systemctl poweroff --no-block'
END
    cat >"$folder/up/etc/systemd/system/test.target" <<'END'
[Unit]
Requires=multi-user.target commands.service
END
    cat >"$folder/inside" <<'END'
set -e
cd "$1"
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root
# The source may lie on another file system than the root.
mkdir -p "root$2"
mount --rbind "$2" "root$2"
mount -t proc proc root/proc
mount --bind root/proc/sys root/proc/sys
mount -o remount,bind,ro root/proc/sys
mount -t sysfs -o ro sysfs root/sys
mount -t tmpfs -o mode=755 none root/run
mount -t tmpfs -o mode=755 none root/dev
for node in null zero full random urandom tty fuse autofs loop-control; do
    [[ ! -e /dev/$node ]] || cp -a "/dev/$node" root/dev/
done
chmod 666 root/dev/fuse
for n in {0..63}; do mknod "root/dev/loop$n" b 7 $n; done
mkdir root/dev/shm root/dev/pts
touch root/dev/console
ln -s /proc/self/fd root/dev/fd
if [[ -d /sys/fs/cgroup/systemd ]]; then
    mount -t tmpfs none root/sys/fs/cgroup
    mkdir root/sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup root/sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup2 root/sys/fs/cgroup
fi
exec chroot root env -i container=xact-test PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=test.target
END
    # shellcheck disable=SC2016  # expanded by that shell
    timeout --signal=KILL 90 bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$group" \
        unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private \
        bash "$folder/inside" "$folder" "$ROOT" </dev/null >"$folder/console" 2>&1 || true
    find "$group" -depth -type d -exec rmdir {} + || true
    cat "$folder/up/output"
    [[ $(tail -n 1 "$folder/up/output") == "status 0" ]] || fail "the commands failed: $(tail -n 20 "$folder/up/output")"
}

# systemd itself: volumes at the boot, on access, as a service, and as a service of a user, over a
# reboot.
test_systemd_mounts_volumes() {
    needs systemd-analyze systemd-run
    [[ -x /lib/systemd/systemd && -d /sys/fs/cgroup/systemd || -e /sys/fs/cgroup/cgroup.procs ]] || {
        report "not tested: this system has no systemd, or no control groups for it"
        return
    }
    mkdir system
    cat >install <<END
export CARGO_TARGET_DIR=$TARGET
"$ROOT/scripts/install" /usr/local
mkdir -p /images /mnt/{boot,access,service} /home/user/volume /etc/xact /home/user/.config/xact
for name in boot access service user; do xact mkfs /images/\$name.img --size 64M; done
xact mkfs /images/user.img --size 64M --force --root-owner \$(id -u nobody)
cat >/etc/fstab <<ENDFSTAB
/images/boot.img /mnt/boot xact defaults,nodelalloc 0 0
/images/access.img /mnt/access xact x-systemd.automount,x-systemd.idle-timeout=1h,nofail 0 0
/images/none.img /mnt/none xact nofail 0 0
ENDFSTAB
printf 'IMAGE=/images/service.img\nMOUNT_POINT=/mnt/service\nOPTIONS=nosuid\nARGUMENTS=--cache-size 32M\n' >/etc/xact/data.conf
systemctl enable xact@data
printf 'IMAGE=/images/user.img\nMOUNT_POINT=/home/user/volume\n' >/home/user/.config/xact/mine.conf
mkdir -p /home/user/.config/systemd/user/default.target.wants
ln -s /usr/local/lib/systemd/user/xact@.service /home/user/.config/systemd/user/default.target.wants/xact@mine.service
chown nobody /images/user.img \$(find /home/user)
END
    boot "$WORK/system" install >/dev/null
    cat >second <<'END'
echo "boot: $(findmnt -n -o FSTYPE,SOURCE /mnt/boot | sed 's/loop[0-9]*/loop/')"
echo "access: $(findmnt -n -o FSTYPE /mnt/access | xargs)"
ls /mnt/access
echo "accessed: $(findmnt -n -o FSTYPE /mnt/access | xargs)"
echo "none: $(systemctl is-active mnt-none.mount)"
echo "service: $(systemctl is-active xact@data) $(systemctl show -P StatusText xact@data) $(findmnt -n -o OPTIONS /mnt/service | grep -o nosuid)"
pid=$(systemctl show -P MainPID xact@data)
if (echo -900 >/proc/$BASHPID/oom_score_adj) 2>/dev/null; then
    echo "score: $(cat /proc/$pid/oom_score_adj)"
else
    echo "score: not to be lowered here"
fi
xact run --at /mnt/service -- sh -c 'echo x >/mnt/service/file'
echo "stat: $(xact stat --json /mnt/service | jq -c '[.mount, .read_only]')"
journalctl --sync
echo "journal: $(journalctl -o json MOUNT=/mnt/service | tail -n 1 | jq -r '[(.MESSAGE | sub("UUID [0-9a-f-]+"; "UUID")), .VOLUME_UUID == $uuid, ._SYSTEMD_UNIT] | join("|")' --arg uuid "$(xact info --json /images/service.img | jq -r .uuid)")"
# A daemon that dies is started again.
kill -KILL $pid
until [[ $(systemctl show -P MainPID xact@data) != @(0|$pid) && $(systemctl is-active xact@data) == active ]]; do sleep 0.1; done
echo "again: $(cat /mnt/service/file)"
echo y >/mnt/service/unsynced
systemctl stop xact@data
echo "stopped: $(systemctl is-active xact@data) $(systemctl show -P Result xact@data) $(xact info --json /images/service.img | jq .clean)"
systemctl start xact@data
# A user's manager at the login.
mkdir -p /run/user/1; chown nobody /run/user/1
systemd-run --quiet --unit=login --uid="$(id -u nobody)" -p Delegate=yes -p Type=notify --setenv=HOME=/home/user \
    --setenv=XDG_RUNTIME_DIR=/run/user/1 /lib/systemd/systemd --user --unit=default.target
until findmnt /home/user/volume >/dev/null; do sleep 0.1; done
setpriv --reuid nobody --regid nogroup --clear-groups touch /home/user/volume/mine
echo "user: $(findmnt -n -o FSTYPE /home/user/volume)"
for folder in boot access service; do touch /mnt/$folder/late; done
END
    boot "$WORK/system" second >said
    sed -i 's/not to be lowered here/-900/' said
    diff - said <<'END' || fail "systemd did otherwise"
boot: fuseblk.xact /dev/loop
access: autofs
lost+found
accessed: autofs fuseblk.xact
none: failed
service: active /images/service.img on /mnt/service nosuid
score: -900
stat: ["/mnt/service",false]
journal: mounted /images/service.img (UUID)|true|xact@data.service
again: x
stopped: inactive success true
user: fuse.xact
status 0
END
    # The end of the system unmounted all.
    local name
    for name in boot access service user; do
        equal "$name is clean" true "$("$XACT" info --json "system/up/images/$name.img" | jq .clean)"
        sound "system/up/images/$name.img"
    done
    cat >third <<END
ls /mnt/{boot,access}/late /mnt/service/{file,unsynced,late}
systemctl stop xact@data mnt-access.mount mnt-access.automount mnt-boot.mount
! findmnt -t fuse.xact,fuseblk.xact
"$ROOT/scripts/install" --remove /usr/local
ls /sbin/*.xact /usr/local/lib/systemd/*/xact@.service 2>/dev/null || echo removed
END
    boot "$WORK/system" third >said
    has said '^removed$'
    equal "lines" 8 "$(wc -l <said)"
}
