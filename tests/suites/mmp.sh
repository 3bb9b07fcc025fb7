# Multi-mount protection: volumes that another machine may have mounted. Mostly waiting.

test_multi_mount_protection() {
    needs dumpe2fs jq
    truncate -s 64M disk.img
    mke2fs -q -t ext4 -O mmp disk.img
    mounted disk.img mnt
    echo x >mnt/file
    "$XACT" sync mnt
    # A copy, as another machine would see it: no lock on the file warns xact.
    cp --sparse=always disk.img other.img
    cp --sparse=always disk.img crashed.img
    unmounted mnt
    sound disk.img
    # The other machine's number does not change: xact waits, and then takes the volume over.
    local start=$SECONDS
    mounted other.img mnt
    [[ $((SECONDS - start)) -ge 10 ]] || fail "the volume was taken over after $((SECONDS - start)) s"
    equal content x "$(cat mnt/file)"
    unmounted mnt
    sound other.img
    # A read-only mount writes only to replay the log, and claims the volume for that alone. Here a
    # claim can be seen, because it needs the wait; without the log there is none.
    start=$SECONDS
    mounted crashed.img mnt -o ro,noload
    unmounted mnt
    [[ $((SECONDS - start)) -lt 10 ]] || fail "reading without the log waited"
    start=$SECONDS
    mounted crashed.img mnt -o ro
    [[ $((SECONDS - start)) -ge 10 ]] || fail "the log was replayed after $((SECONDS - start)) s"
    start=$SECONDS
    mounted crashed.img other -o ro
    equal "content of both" 'x x' "$(cat mnt/file other/file | xargs)"
    unmounted other
    unmounted mnt
    mounted crashed.img mnt
    unmounted mnt
    [[ $((SECONDS - start)) -lt 10 ]] || fail "the claim was not released"
    sound crashed.img
    # The number changes: another machine has the volume.
    local block
    put_sequence() { # NUMBER
        printf "\\x$(printf %02x "$1")\\0\\0\\0" | dd of=third.img bs=1 seek=$((block * 4096 + 4)) conv=notrunc status=none
    }
    truncate -s 64M third.img
    mke2fs -q -t ext4 -O mmp,^metadata_csum -b 4096 third.img
    block=$(dumpe2fs -h third.img 2>/dev/null | sed -nE 's/^MMP block number: +([0-9]+)$/\1/p')
    put_sequence 5
    (sleep 4; put_sequence 6) &
    exits 69 'in use.*machine' -- "$XACT" mount third.img mnt
    wait
    # e2fsck has the volume.
    printf '\x50\x4d\x4d\xe2' | dd of=third.img bs=1 seek=$((block * 4096 + 4)) conv=notrunc status=none
    exits 69 'being checked' -- "$XACT" mount third.img mnt
    # Snapshots of a volume that is not mounted respect it too.
    truncate -s 256M fourth.img
    mke2fs -q -t ext4 -O mmp,^metadata_csum -b 4096 fourth.img
    block=$(dumpe2fs -h fourth.img 2>/dev/null | sed -nE 's/^MMP block number: +([0-9]+)$/\1/p')
    "$XACT" convert fourth.img --to generations >/dev/null
    "$XACT" snapshot create fourth.img one
    printf '\x50\x4d\x4d\xe2' | dd of=fourth.img bs=1 seek=$((block * 4096 + 4)) conv=notrunc status=none
    exits 69 'being checked' -- "$XACT" snapshot create fourth.img two
    equal "readable by then" one "$("$XACT" snapshot list --json fourth.img | jq -r '.[].name')"
}
