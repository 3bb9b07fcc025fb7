# timeout: 400
# What 'make dist' makes, installed into a bare system that mmdebstrap has made, where the first
# steps of the README are done; then all of it is removed.

# The bare system is kept in target/bare, as an archive. It has what the packages depend on, so apt
# needs no network.
BARE=$TARGET/bare
INCLUDE=fuse3,e2fsprogs,python3-venv
made_bare() {
    needs mmdebstrap
    local release mirror tree try
    release=$(. /etc/os-release && printf %s "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release { print $1; exit }')
    BARE=$BARE/$release
    mkdir -p "$TARGET/bare"
    exec 8>"$TARGET/bare/lock"
    flock 8
    if [[ ! -e $BARE.tar || $(cat "$BARE.packages") != "$INCLUDE" ]]; then
        # In memory: dpkg waits for the disk after each package.
        tree=$WORK/in-memory
        mkdir "$tree"
        mount -t tmpfs -o size=1g none "$tree"
        # A mirror may refuse a download now and then.
        for try in 1 2 3; do
            TMPDIR=$tree mmdebstrap --quiet --mode=root --variant=minbase --include="$INCLUDE" --format=tar \
                "$release" "$BARE.new" "$mirror" >bootstrap.log 2>&1 && break
            [[ $try -lt 3 ]] || fail "mmdebstrap ended with an error: $(cat bootstrap.log)"
            sleep 5
        done
        umount "$tree"
        printf '%s\n' "$INCLUDE" >"$BARE.packages"
        mv "$BARE.new" "$BARE.tar"
    fi
    flock -u 8
}

# A bare system in ./root, with these files in its /packages.
bare() { # FILES…
    made_bare
    mkdir root
    mount -t tmpfs -o size=1g none root
    tar -C root -xf "$BARE.tar"
    mount -t proc none root/proc
    mount -t tmpfs none root/dev
    mknod -m 666 root/dev/fuse c 10 229
    mknod -m 666 root/dev/null c 1 3
    mknod -m 666 root/dev/urandom c 1 9
    ln -s /proc/self/fd root/dev/fd
    ln -sfn ../proc/self/mounts root/etc/mtab
    mkdir root/packages
    [[ $# -eq 0 ]] || cp "$@" root/packages/
}
in_root() { # COMMANDS OF A SHELL
    chroot root env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive sh -xeuc "$1"
}
# Every path of the system, without the records of dpkg, rpm, ldconfig and useradd, and without the
# test's own.
paths() {
    (cd root && find . -xdev \( -path ./packages -o -path ./srv -o -path ./tmp -o -path ./var/log -o -path ./var/lib/dpkg -o -path ./var/lib/rpm \
        -o -path './etc/*-' -o -path ./run -o -path ./root -o -path ./var/cache -o -path ./var/lib/apt \) -prune -o -print | sort)
}

test_deb_and_wheel_in_a_bare_system() {
    needs dpkg-deb
    "$ROOT/scripts/dist" deb wheel >made
    while read -r file; do [[ -s $file ]] || fail "$file is missing"; done <made
    mapfile -t made <made
    bare "${made[@]}"
    printf '/srv/disk.img /srv/mnt xact defaults 0 0\n' >>root/etc/fstab
    paths >before
    in_root 'apt-get install -qq -y --no-install-recommends /packages/xact_*.deb' >said 2>&1 || fail "$(cat said)"
    paths >with
    in_root '
        test "$(xact --version)" = "xact '"$("$XACT" --version | cut -d ' ' -f 2)"'"
        cd /srv && xact mkfs disk.img --size 64M >/dev/null
        mkdir mnt && xact mount disk.img mnt
        xact run --at mnt -- sh -c "echo hello > mnt/file; mkdir mnt/folder"
        test "$(ls mnt | xargs)" = "file folder lost+found"
        xact run --at mnt -- sh -c "rm -r mnt/*; exit 1" || test $? = 1
        test "$(ls mnt | xargs)" = "file folder lost+found"
        xact run --at mnt --leave-open -- sh -c "echo changed > mnt/file" 2>/dev/null
        number=$(xact tx list --at mnt | grep -o "^[0-9]*")
        xact tx diff "$number" --at mnt | grep -q "/file"
        xact tx abort "$number" --at mnt
        test "$(cat mnt/file)" = hello
        umount mnt
        e2fsck -fn disk.img >/dev/null 2>&1
        # By the line of fstab, with the helpers.
        mount mnt && test "$(cat mnt/file)" = hello && umount /srv/mnt
        mkfs.xact other.img --size 16M >/dev/null && fsck -t xact other.img >/dev/null
        ldconfig -p | grep -q "libxact.so.0 .*/lib/"
        ldconfig -p | grep -q "libxact_sqlite.so .*/lib/"
        test ! -e /usr/libexec/xact
    ' 2>said || fail "the first steps: $(cat said)"

    # The wheel brings its library: that of the system is not looked at.
    cat >root/srv/two.py <<'PYTHON'
import asyncio, xact

with xact.transaction("mnt"):
    open("mnt/one", "w").write("1")
    open("mnt/two", "w").write("1")

async def main():
    async with xact.folder("mnt") as tx:
        open(tx.path + "/three", "w").write("1")

asyncio.run(main())
PYTHON
    in_root '
        python3 -m venv /srv/venv
        /srv/venv/bin/pip install --quiet --no-index /packages/*.whl
        cd /srv && mount mnt
        library=$(echo /usr/lib/*/libxact.so.0)
        mv "$library" /srv/aside
        venv/bin/python two.py
        mv /srv/aside "$library"
        test "$(cat mnt/one mnt/two mnt/three)" = 111
        umount mnt
    ' 2>said || fail "the wheel: $(cat said)"

    # The helper of xact run is a package of its own, with the bit.
    in_root '
        apt-get install -qq -y /packages/xact-run-helper_*.deb
        test "$(stat -c "%a %U %G" /usr/libexec/xact/xact-run-helper)" = "4755 root root"
        useradd user && cd /srv && mount mnt && chmod 777 mnt
        su user -c "xact run --at mnt -- sh -c \"stat -c %U /usr/bin/env; touch mnt/of-user\"" >owner 2>note
        test "$(cat owner)" = root && test ! -s note && test -e mnt/of-user
        umount mnt && userdel user
    ' >said 2>&1 || fail "the run helper: $(cat said; cat root/srv/note)"

    # Removed: nothing is left, and the volume of fstab is as it was.
    local sum
    sum=$(sha256sum <root/srv/disk.img)
    in_root 'apt-get remove -qq -y xact-run-helper xact && apt-get purge -qq -y xact-run-helper xact' >said 2>&1 || fail "$(cat said)"
    paths | diff before - || fail "the packages left the paths above"
    has root/etc/fstab '^/srv/disk.img /srv/mnt xact'
    equal "the volume" "$sum" "$(sha256sum <root/srv/disk.img)"
    if in_root 'ldconfig -p' | grep libxact; then fail "the library is still in the cache of ld.so"; fi
    report "$(comm -13 before with | wc -l) paths came and went"
}
