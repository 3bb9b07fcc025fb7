# timeout: 5400
# A system with xact from its packages, in a virtual machine: from the installation over boots, a
# login and power cuts to the removal. Each step prints a line. ROUNDS=20 cuts the power more often,
# SEED=17 repeats the moments.

source "$TESTS/machine.sh"

step() {
    STEP=$((STEP + 1))
    report "step $STEP, $((SECONDS - BEGAN)) s: $*: ok"
    BEGAN=$SECONDS
}

# Makes the packages of the command and of the helper of xact run; prints their paths.
packages() {
    mkdir -p "$TARGET/machine"
    flock "$TARGET/machine/lock" "$ROOT/scripts/dist" deb >dist.log 2>&1 || fail "scripts/dist: $(<dist.log)"
    ls "$TARGET"/dist/{xact,xact-run-helper}_*.deb
}

packages_installed() {
    guest 'dpkg -i /srv/test/*.deb' >said
    guest 'xact --version; for kind in mount umount mkfs fsck; do command -v $kind.xact; done
        systemctl cat xact@.service | grep ^ExecStart=
        dpkg -L xact xact-run-helper | while read -r path; do [[ -z $path || -d $path ]] || echo "$path"; done >/root/files
        test -s /root/files' >said
    equal "lines" 6 "$(wc -l <said)"
    has said '^ExecStart=/usr/bin/xact '
    step "packages installed, $(guest 'wc -l </root/files') files: $(head -n 1 said), the helpers of mount(8) and fsck(8), the units"
}

volumes_in_fstab() {
    guest '
        mkdir -p /mnt/{journal,generations,image,access}
        xact mkfs --label journal /dev/vdb
        mkfs -t xact --engine generations --label generations /dev/vdc
        xact mkfs --size 256M /srv/image.img
        xact mkfs --size 64M /srv/access.img
        udevadm settle
        cat >>/etc/fstab <<ENDFSTAB
UUID=$(blkid -o value -s UUID /dev/vdb) /mnt/journal xact nofail 0 2
LABEL=generations /mnt/generations xact nofail 0 2
/srv/image.img /mnt/image xact nofail,commit=2 0 0
/srv/access.img /mnt/access xact nofail,x-systemd.automount 0 0
ENDFSTAB
        systemctl daemon-reload
        mount -a
        for name in journal generations image; do echo $name >/mnt/$name/file; done
        findmnt -n -o TARGET,FSTYPE -t fuseblk.xact | sort' >said
    equal "mounts" '/mnt/access fuseblk.xact /mnt/generations fuseblk.xact /mnt/image fuseblk.xact /mnt/journal fuseblk.xact' \
        "$(tail -n 4 said | xargs)"
    guest 'echo access >/mnt/access/file'
    step "four lines of fstab mounted: block devices by UUID= and LABEL=, two image files"
}

# Calls a function with each volume, as the host sees it while the machine is off.
images() { # THE ROOT'S DISK, FUNCTION
    local name
    for name in image access; do root_file "$1" /srv/$name.img $name.img; done
    for name in journal generations image access; do "$2" $name.img; done
}
clean_and_sound() {
    equal "$1 is clean" true "$("$XACT" info --json "$1" | jq .clean)"
    sound "$1"
}
recovered_and_sound() {
    cp --sparse=always "$1" copy
    "$XACT" recover copy >/dev/null
    "$XACT" check copy >checked || fail "xact check of $1: $(<checked)"
    sound copy
    rm copy
}

rebooted() {
    shut_down reboot
    images root.img clean_and_sound
    step "clean reboot: the disks' volumes are clean and sound to the host"
    power_on
    equal "the boot" running "$BOOTED"
    guest 'cat /mnt/{journal,generations,image}/file
        findmnt -n -o FSTYPE /mnt/access
        cat /mnt/access/file
        findmnt -n -o FSTYPE /mnt/access | xargs' >said
    equal "files and the automount" "journal generations image autofs access autofs fuseblk.xact" "$(xargs <said)"
    no_complaints
    checked_at_boot
    equal "what fsck found" '/dev/vdb: clean, /dev/vdc: clean, ' "$(grep -oE '^.*: clean, ' checked | paste -sd '')"
    step "second boot: three volumes mounted, the fourth at its first use; fsck.xact found both devices clean; no unit failed, no warning in the journal"
}

no_complaints() {
    # Debian's kernels note the first use of fanotify(7) as xact uses it, by whichever program
    # (docs/guide/kernels.md).
    guest 'systemctl --failed --no-legend --plain
        journalctl -b -p warning -o short | grep -i xact | grep -v "fanotify permission checks .* tainting kernel" || true' >said
    equal "failed units and warnings" '' "$(<said)"
}
# Writes what fsck printed in this boot to the file "checked".
checked_at_boot() { guest 'journalctl -b -o cat -u "systemd-fsck@*" | grep ^/dev/ | sort -s -t : -k 1,1' >checked; }

# Types a line at the login, and waits for an answer.
at_login() { # PATTERN OF THE ANSWER, LINE
    local i
    : >login.log
    printf '%s\n' "$2" >&"$TO_LOGIN"
    for ((i = 0; i < TIMEOUT * 10; i++)); do
        ! grep -qE "$1" login.log || return 0
        sleep 0.1
    done
    fail "the login did not answer '$1' to '$2': $(<login.log)"
}
log_in() {
    at_login 'login: ' ''
    at_login 'Password: ' user
    at_login 'user@machine:~\$ ' password
}
log_out() {
    at_login 'login: ' exit
    guest 'while loginctl list-users --no-legend | grep -w user; do sleep 0.5; done' >/dev/null
}

user_logged_in() {
    log_in
    # The shell echoes what is typed, and does not compute it.
    at_login 'done-2' 'xact mkfs work.img --size 64M && mkdir -p work .config/xact && printf "IMAGE=$HOME/work.img\nMOUNT_POINT=$HOME/work\n" >.config/xact/work.conf && systemctl --user enable xact@work; echo done-$((1 + 1))'
    log_out
    guest 'findmnt /home/user/work || true' >said
    equal "mounts without a login" '' "$(<said)"
    log_in
    at_login 'fuse.xact user' 'until mountpoint -q work; do sleep 0.1; done; xact run --at work -- touch work/file; echo $(findmnt -n -o FSTYPE work) $(stat -c %U work/file)'
    guest 'loginctl list-sessions --no-legend --no-pager' >said
    has said 'user.*ttyS1'
    log_out
    guest 'findmnt /home/user/work || xact info /home/user/work.img' >said
    has said '^state: +clean'
    step "a user's volume is mounted at the login by xact@work, and is unmounted after the logout"
}

# The last number that was acknowledged in a round, or else the one of an earlier round.
acknowledged() { # VOLUME, t OR l
    tail -n +"$ROUND_BEGAN" acknowledged | grep -a "^$1 $2 [0-9]*$" | tail -n 1 | cut -d ' ' -f 3
}
# A marker on the fourth disk, in a sector of its own, is flushed, and another is not. The power cut
# must lose the second: otherwise the disks keep what a real one may lose, and the test is weak.
mark() { # ROUND
    guest "printf flushed-$1 | dd of=/dev/vdd bs=512 conv=sync,fsync oflag=direct status=none
        printf unflushed-$1 | dd of=/dev/vdd bs=512 seek=8 conv=sync oflag=direct status=none"
}
marked() { # ROUND
    equal "the flushed sector" "flushed-$1" "$(sector 0)"
    equal "the sector that was not flushed" '' "$(sector 8)"
}
sector() { dd if=scratch.img bs=512 skip="$1" count=1 status=none | tr -d '\0'; }
load_runs() {
    local name kind
    for name in journal generations image; do
        for kind in t l; do [[ -n $(acknowledged $name $kind) ]] || return 1; done
    done
}

power_cuts() {
    local round name reader i transactions lines found ms
    RANDOM=${SEED:=$RANDOM}
    # Logged in, too.
    log_in
    at_login fuse.xact 'until mountpoint -q work; do sleep 0.1; done; findmnt -n -o FSTYPE work'
    : >acknowledged
    for ((round = 1; round <= ${ROUNDS:-5}; round++)); do
        mark $round
        ROUND_BEGAN=$(($(wc -l <acknowledged) + 1))
        cat <&"$FROM_AGENT" >>acknowledged &
        reader=$!
        send 'PYTHONPATH=/srv/test exec python3 /srv/test/machine_load.py load /mnt/{journal,generations,image}'
        for ((i = 0; i < TIMEOUT * 5; i++)); do
            ! load_runs || break
            ! grep -a guest-status acknowledged || fail "the load ended: $(tail -n 20 acknowledged)"
            sleep 0.2
        done
        load_runs || fail "the load does not start: $(tail -n 20 acknowledged)"
        ms=$((RANDOM % 5000))
        sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
        power_cut
        marked $round
        kill $reader
        wait $reader 2>/dev/null || true
        # A line that was not printed whole acknowledges nothing.
        echo >>acknowledged
        # The kernel's ext4 replays the root's log, here as at the boot.
        cp --sparse=always root.img root.cut
        e2fsck -fp root.cut >said || [[ $? -eq 1 ]] || fail "the root was damaged: $(<said)"
        images root.cut recovered_and_sound
        power_on
        equal "the boot" running "$BOOTED"
        checked_at_boot
        has checked '^/dev/vdb: replayed [0-9]+ commits'
        has checked '^/dev/vdb: clean, '
        has checked '^/dev/vdc: clean, '
        found=''
        for name in journal generations image; do
            transactions=$(acknowledged $name t)
            lines=$(acknowledged $name l)
            guest "PYTHONPATH=/srv/test python3 /srv/test/machine_load.py verify /mnt/$name $transactions $lines" >said
            found+=" $(<said)"
        done
        no_complaints
        step "power cut $round: at boot $(sed -E 's/: (clean)/ is \1/' checked | paste -sd ';' | sed 's/;/; /g'); every acknowledged transaction and line exists, none is half there: transactions and lines$found"
    done
    log_in
    at_login 'work/file' 'until mountpoint -q work; do sleep 0.1; done; ls -d work/fil*'
    log_out
    report "each cut lost the sector that was written last and not flushed"
    step "the user's volume, in use at the first power cut, is mounted at the next login"
    report "SEED=$SEED repeats the moments of the power cuts"
}

# Removes the packages while their volumes are mounted, and boots without them.
packages_removed() {
    guest 'ls /mnt/access/ >/dev/null
        dpkg -r xact-run-helper xact
        while read -r path; do [[ ! -e $path && ! -L $path ]] || echo "left: $path"; done </root/files
        systemctl list-unit-files --no-legend "xact@*" || true
        # The daemons run until the end.
        for name in journal generations image access; do echo $name >/mnt/$name/late; done' >said
    lacks said '^left: |xact@'
    shut_down poweroff
    images root.img clean_and_sound
    sha256sum {journal,generations,image,access}.img >sums
    step "packages removed below mounted volumes: no file and no unit is left, and the last changes are durable"
    power_on
    equal "the boot" degraded "$BOOTED"
    guest 'systemctl --failed --no-legend --plain | sed "s/ .*//"
        mount -t ext4 /dev/vdb /mnt/journal -o ro,noload
        mount -t ext4 /srv/image.img /mnt/image -o ro,noload
        cat /mnt/{journal,image}/{file,late}' >said
    equal "failed units and files of the kernel's ext4" \
        'mnt-generations.mount mnt-image.mount mnt-journal.mount journal journal image image' "$(xargs <said)"
    shut_down poweroff
    images root.img true
    sha256sum --quiet -c sums || fail "a volume was changed"
    step "boot without the packages: lines with nofail do not hold it up, no volume is changed, the kernel's ext4 reads those with a journal"
}

life_of_a_system() { # KERNEL
    STEP=0
    BEGAN=$SECONDS
    packages >debs
    # shellcheck disable=SC2046  # one word for each package
    machine "$1" $(<debs) "$TESTS/machine_load.py" "$ROOT/python/xact"
    power_on
    equal "the boot" running "$BOOTED"
    step "Debian 12 with Linux $(guest 'uname -r') and systemd boots"
    packages_installed
    volumes_in_fstab
    rebooted
    user_logged_in
    power_cuts
    packages_removed
}

test_debian_12() { life_of_a_system debian-12; }

test_newest_kernel() { life_of_a_system debian-newest; }
