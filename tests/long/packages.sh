# timeout: 600
# As tests/suites/packages.sh, for the .rpm.

source "$TESTS/suites/packages.sh"

# The bare system is Debian's, so dependencies by the names of others are not looked at.
test_rpm() {
    needs rpm
    "$ROOT/scripts/dist" rpm >made
    mapfile -t made <made
    equal "packages" 2 "${#made[@]}"
    bare
    # Distributions with rpm have these.
    mkdir -p root/usr/lib/systemd/user root/usr/lib64/pkgconfig root/usr/share/licenses
    local install=(rpm --root "$PWD/root" --nodeps)
    rpm --checksig --nosignature "${made[@]}" >said || fail "$(cat said)"
    rpm -qp --requires "${made[0]}" >requires
    has requires '^fuse3$'
    has requires '^libc.so.6.*GLIBC'
    paths >before
    "${install[@]}" -i "${made[0]}" 2>said || fail "$(cat said)"
    [[ ! -e root/usr/libexec/xact ]]
    "${install[@]}" -i "${made[1]}" 2>said || fail "$(cat said)"
    equal "the run helper" "4755 root root" "$(stat -c '%a %U %G' root/usr/libexec/xact/xact-run-helper)"
    "${install[@]}" --verify xact xact-run-helper >said || fail "$(cat said)"
    in_root '
        cd /srv && xact mkfs disk.img --size 64M >/dev/null
        mkdir mnt && mount -t xact disk.img mnt
        xact run --at mnt -- sh -c "echo hello > mnt/file"
        umount mnt && fsck.xact disk.img >/dev/null
    ' 2>said || fail "the first steps: $(cat said)"
    # The files are those of 'make install'.
    diff <(DESTDIR=$PWD/staged LIBDIR=/usr/lib64 "$ROOT/scripts/install" /usr >/dev/null && cd staged && find . -type f -o -type l | sort) \
        <(paths | comm -13 before - | while read -r path; do [[ -d root/$path && ! -L root/$path ]] || printf '%s\n' "$path"; done |
            grep -vE '^./usr/share/(doc|licenses)/') || fail "the files above are in one of both only"
    "${install[@]}" -e xact-run-helper xact 2>said || fail "$(cat said)"
    paths | diff before - || fail "the packages left the paths above"
}
