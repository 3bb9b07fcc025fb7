# timeout: 200
# The three ways of docs/guide/containers.md, with buildah. It isolates with chroot(2) and keeps its
# layers as folders: both work without systemd, and inside of another container.

engine() {
    buildah --storage-driver vfs --root "$WORK/images" --runroot "$WORK/running" "$@"
}
in_container() { # OPTIONS… NAME COMMAND…
    engine run --isolation chroot "$@"
}

# A container in CONTAINER: busybox, and xact with its libraries.
container() {
    needs buildah busybox
    local image file
    mkdir -p image/bin image/tmp
    cp "$(command -v busybox)" image/bin/
    for file in sh cat ls mkdir mv rm sync; do ln -s busybox "image/bin/$file"; done
    cp "$XACT" image/bin/xact
    ldd "$XACT" | grep -o '/[^ ]*' | sort -u | while read -r file; do
        mkdir -p "image$(dirname "$file")"
        cp -L "$file" "image$file"
    done
    CONTAINER=$(engine from scratch)
    engine add --quiet "$CONTAINER" image / >/dev/null
}

test_a_volume_in_a_container() {
    container
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/data
    in_container --volume "$PWD/mnt/data:/data" "$CONTAINER" sh -c 'echo 1 > /data/one && mkdir /data/folder && mv /data/one /data/folder/'
    equal "on the host" 1 "$(cat mnt/data/folder/one)"

    # With the whole volume in it, transactions work inside.
    in_container --cap-add CAP_SYS_ADMIN --volume "$PWD/mnt:/volume" "$CONTAINER" \
        xact run --at /volume -- sh -c 'echo 2 > /volume/two; rm -r /volume/data'
    equal "committed in the container" 2 "$(cat mnt/two)"
    [[ ! -e mnt/data ]]
    exits 3 -- in_container --cap-add CAP_SYS_ADMIN --volume "$PWD/mnt:/volume" "$CONTAINER" \
        xact run --at /volume -- sh -c 'echo 3 > /volume/two; exit 3'
    equal "rolled back" 2 "$(cat mnt/two)"
    unmounted mnt
    sound disk.img
}

# Layers and containers on the volume: what buildah writes is one transaction.
test_a_container_in_a_transaction() {
    container
    volume disk.img --size 512M
    mounted disk.img mnt
    mkdir mnt/images
    cat >build <<'END_OF_BUILD'
set -e
engine="buildah --storage-driver vfs --root mnt/images --runroot running"
container=$($engine from scratch)
$engine add --quiet $container image /
$engine run --isolation chroot $container sh -c 'echo made > /result'
$engine commit --quiet $container result
$engine rm $container
# Not on the volume, so this stays.
touch "built-$1"
test "$1" = keep
END_OF_BUILD
    exits 1 -- "$XACT" run --at mnt -- bash build fail
    [[ -e built-fail ]] || fail "the build did not reach its end: $(cat exits.err)"
    equal "after the build that failed" '' "$(ls mnt/images)"
    "$XACT" run --at mnt -- bash build keep >/dev/null
    buildah --storage-driver vfs --root mnt/images --runroot running from --name again localhost/result >/dev/null
    equal "from the image" made "$(buildah --storage-driver vfs --root mnt/images --runroot running run --isolation chroot again cat /result)"
    unmounted mnt
    sound disk.img
}

test_xact_in_a_container() {
    container
    mkdir work
    in_container --cap-add CAP_SYS_ADMIN --volume /dev/fuse:/dev/fuse --volume "$PWD/work:/work" "$CONTAINER" sh -ec '
        cd /work
        xact mkfs disk.img --size 64M >/dev/null
        mkdir /tmp/mnt
        xact mount disk.img /tmp/mnt
        xact run --at /tmp/mnt -- sh -c "echo 1 > /tmp/mnt/one"
        xact run --at /tmp/mnt -- sh -c "rm /tmp/mnt/one; exit 1" || true
        cat /tmp/mnt/one > read
        xact umount /tmp/mnt' 2>said || fail "$(cat said)"
    equal "read in the container" 1 "$(cat work/read)"
    sound work/disk.img
    mounted work/disk.img mnt
    equal "read on the host" 1 "$(cat mnt/one)"
    unmounted mnt
}
