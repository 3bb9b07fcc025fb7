# Quotas: usage in the volume's own files stays what e2fsck counts, and limits hold.

QUOTA=usrquota:grpquota:prjquota

quota_volume() { # IMG [ARGUMENTS OF mke2fs…]
    local image=$1
    shift
    truncate -s 200M "$image"
    mke2fs -q -F -t ext4 -O quota,project -I 256 -E quotatype=$QUOTA "$@" "$image" 2>"$WORK/mke2fs.err" ||
        fail "mke2fs: $(cat "$WORK/mke2fs.err")"
}

# checked IMG: e2fsck and xact check say that usage is right.
checked() {
    sound "$1"
    "$XACT" check "$1" >check.out || fail "xact check: $(cat check.out)"
}

# usage IMG user|group|project ID: "bytes inodes" from the quota file.
usage() {
    debugfs -R "get_quota $2 $3" "$1" 2>/dev/null | awk -v id="$3" '$1 == id { print $2, $5 }'
}

# limit IMG KIND-INODE ID ENTRY-OFFSET VALUE: writes a limit into the quota file as quota tools do.
limit() {
    python3 - "$@" <<'PYTHON'
import struct, subprocess, sys

image, ino, wanted, at, value = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
run = lambda request: subprocess.run(["debugfs", "-R", request, image], capture_output=True, text=True, check=True)
size = int(run("stats").stdout.split("Block size:")[1].split()[0])
with open(image, "r+b") as volume:
    for number in range(64):
        block = int(run(f"bmap <{ino}> {number}").stdout.split()[0])
        for piece in range(0, size, 1024):
            if number * size + piece < 2048 or block == 0:
                continue
            for entry in range(16, 1024 - 71, 72):
                place = block * size + piece + entry
                volume.seek(place)
                data = volume.read(72)
                # A used entry has a count of inodes; a node of the tree has small words only.
                if struct.unpack_from("<I", data)[0] == wanted and struct.unpack_from("<Q", data, 24)[0] > 0:
                    volume.seek(place + at)
                    volume.write(struct.pack("<Q", value))
                    sys.exit()
sys.exit("no entry of this id")
PYTHON
}
# Offsets in an entry (struct v2r1_disk_dqblk).
INODES_HARD=8 INODES_SOFT=16 SPACE_HARD=32 SPACE_SOFT=40

# Something of every kind that is charged to a user, in the current folder.
charge_everything() {
    local uid
    mkdir -p deep/er
    for uid in 1001 1002 70000; do
        head -c $((uid * 3)) /dev/zero >"file$uid"
        chown "$uid:$((uid + 7))" "file$uid"
        ln -s "$(printf 'x%.0s' {1..200})" "link$uid"
        chown -h "$uid:$uid" "link$uid"
        mknod "fifo$uid" p
        chown "$uid" "fifo$uid"
        setfattr -n user.big -v "$(head -c 700 /dev/zero | tr '\0' v)" "file$uid"
        cp "file$uid" deep/er
    done
    chown -R 1002:5 deep
    fallocate -l 1M reserved 2>/dev/null || head -c 1M /dev/zero >reserved
    chown 1003 reserved
    truncate -s 300000 file1001
    fallocate -p -o 0 -l 8192 reserved
    mv file70000 deep/moved
    ln file1002 hard
    rm file1002 fifo1001
    # Enough names for several blocks.
    (cd deep/er && seq -f 'a-long-name-for-an-empty-file-%.0f' 400 | xargs touch)
    sync .
    chown 1004:1004 hard reserved
    rm deep/er/*1
}

test_usage_follows_everything() {
    local options
    for options in "-b 1024" "-b 4096" "-b 4096 -O ^has_journal" "-b 2048 -O ^extents,^64bit -O ^metadata_csum"; do
        # shellcheck disable=SC2086  # words
        quota_volume disk.img $options
        mounted disk.img mnt
        (cd mnt && charge_everything)
        # A file without a name counts until it is deleted.
        exec 7>mnt/held
        chown 4242 mnt/held
        rm mnt/held
        head -c 100000 /dev/zero >&7
        exec 7>&-
        (cd mnt && "$XACT" run --at . -- bash -ec "mkdir in && cd in && head -c 50000 /dev/zero >f && chown 1009:9 f")
        exits 1 -- "$XACT" run --at mnt -- bash -c "head -c 90000 /dev/zero >mnt/never; chown 1010 mnt/never; exit 1"
        unmounted mnt
        checked disk.img
        equal "user 1009 ($options)" 1 "$(usage disk.img user 1009 | awk '{ print $2 }')"
        equal "user 4242 ($options)" "0 0" "$(usage disk.img user 4242)"
        equal "user 1010 ($options)" "0 0" "$(usage disk.img user 1010)"
        rm disk.img
    done
}

test_many_ids() {
    quota_volume disk.img -b 1024
    mounted disk.img mnt
    python3 - mnt <<'PYTHON'
import os, sys

for i in range(1500):
    path = f"{sys.argv[1]}/{i}"
    open(path, "w").close()
    os.chown(path, i * 1000003 % 2**31, i * 77)
PYTHON
    unmounted mnt
    checked disk.img
    equal "one of them" "0 1" "$(usage disk.img user $((1000003 * 1000 % (1 << 31))))"
    mounted disk.img mnt
    rm mnt/*1
    unmounted mnt
    checked disk.img
}

test_killed_in_the_middle() {
    local round
    quota_volume disk.img
    for round in 1 2 3; do
        in_foreground disk.img mnt
        (cd mnt && mkdir "round$round" && cd "round$round" && charge_everything) &
        wait_until "some of it" test -e "mnt/round$round/deep/er/a-long-name-for-an-empty-file-$((round * 100))"
        kill -9 "$DAEMON"
        wait || true
        umount -l mnt
        "$XACT" recover disk.img >/dev/null
        mounted disk.img mnt
        unmounted mnt
        checked disk.img
    done
}

# as UID COMMAND…: without privileges.
as() {
    local uid=$1
    shift
    setpriv --reuid "$uid" --regid "$uid" --clear-groups -- "$@"
}

test_limits() {
    needs setpriv
    quota_volume disk.img
    mounted disk.img mnt
    chmod 777 mnt
    for uid in 1001 1002 1003; do as $uid touch "mnt/own$uid"; done
    unmounted mnt
    limit disk.img 3 1001 $SPACE_HARD 100
    limit disk.img 3 1002 $INODES_HARD 3
    limit disk.img 4 1003 $SPACE_SOFT 50
    "$XACT" check disk.img >/dev/null

    # Usage is counted; the mount enforces the limits.
    mounted disk.img mnt
    as 1001 head -c 300K /dev/zero >mnt/own1001
    as 1001 dd if=/dev/zero of=mnt/own1001 bs=100K count=3 status=none
    as 1001 truncate -s 0 mnt/own1001
    unmounted mnt
    checked disk.img

    mounted disk.img mnt -o usrquota,grpquota
    exits 1 'quota exceeded' -- as 1001 dd if=/dev/zero of=mnt/own1001 bs=4K count=26 status=none
    equal "up to the limit" $((100 << 10)) "$(stat -c %s mnt/own1001)"
    exits 1 'quota exceeded' -- as 1001 fallocate -l 200K mnt/own1001
    exits 1 'quota exceeded' -- as 1001 fallocate -z -l 200K mnt/own1001
    # Freed space can be used again; root is not limited.
    as 1001 dd if=/dev/zero of=mnt/own1001 bs=4K count=10 status=none
    dd if=/dev/zero of=mnt/own1001 bs=4K count=40 conv=notrunc status=none
    as 1001 rm mnt/own1001
    as 1001 dd if=/dev/zero of=mnt/own1001 bs=4K count=25 status=none
    as 1002 touch mnt/second mnt/third
    exits 1 'quota exceeded' -- as 1002 touch mnt/fourth
    exits 1 'quota exceeded' -- as 1002 mkdir mnt/fourth
    exits 1 'quota exceeded' -- as 1002 ln -s x mnt/fourth
    as 1002 ln mnt/third mnt/fourth

    # A soft limit may be exceeded for its time.
    as 1003 dd if=/dev/zero of=mnt/own1003 bs=4K count=20 status=none
    unmounted mnt
    limit disk.img 4 1003 56 1000
    mounted disk.img mnt -o grpquota
    exits 1 'quota exceeded' -- as 1003 dd if=/dev/zero of=mnt/own1003 bs=4K seek=20 count=1 conv=notrunc status=none
    as 1003 dd if=/dev/zero of=mnt/own1003 bs=4K count=20 conv=notrunc status=none
    as 1003 truncate -s 4K mnt/own1003
    as 1003 dd if=/dev/zero of=mnt/own1003 bs=4K seek=1 count=5 status=none
    unmounted mnt
    checked disk.img
}

# project FILE: its number and whether new entries inherit it.
project() { lsattr -pd "$1" | awk '{ print $1, ($2 ~ /P/ ? "P" : "-") }'; }

test_projects() {
    quota_volume disk.img
    mounted disk.img mnt
    mkdir mnt/a mnt/b
    chattr -p 11 mnt/a
    chattr +P mnt/a
    touch mnt/a/file
    mkdir -p mnt/a/sub/sub
    head -c 20000 /dev/zero >mnt/outside
    equal folder "11 P" "$(project mnt/a/sub/sub)"
    equal file "11 -" "$(project mnt/a/file)"
    exits 1 -- python3 -c 'import os; os.rename("mnt/outside", "mnt/a/inside")'
    exits 1 'cross-device' -- ln mnt/outside mnt/a/inside
    mv mnt/a/file mnt/b/file
    chattr -p 11 mnt/b/file mnt/outside
    mv mnt/outside mnt/b/file mnt/a
    # In a transaction as outside.
    exits 18 -- "$XACT" run --at mnt -- python3 -c '
import os, sys
os.makedirs("mnt/a/run"); open("mnt/a/run/file", "w").write("x" * 5000); open("mnt/free", "w")
try: os.rename("mnt/free", "mnt/a/free")
except OSError as error: sys.exit(error.errno)'
    "$XACT" run --at mnt -- bash -ec 'mkdir mnt/a/run; head -c 5000 /dev/zero >mnt/a/run/file; touch mnt/free
        chattr -p 12 mnt/free'
    equal "made in a transaction" "11 -" "$(project mnt/a/run/file)"
    equal "set in a transaction" "12 -" "$(project mnt/free)"
    unmounted mnt
    checked disk.img
    equal "project 11" "7" "$(usage disk.img project 11 | awk '{ print $2 }')"
    equal "project 12" "0 1" "$(usage disk.img project 12)"
    kernel_mounted disk.img mnt ro
    equal "to the kernel" "11 -" "$(project mnt/a/run/file)"
    kernel_unmounted mnt

    limit disk.img 12 11 $INODES_HARD 9
    chmod 755 .
    mounted disk.img mnt -o prjquota
    chmod 777 mnt/a mnt/b
    as 1001 touch mnt/a/one mnt/a/two mnt/b/three
    exits 1 'quota exceeded' -- as 1001 touch mnt/a/three
    exits 1 -- as 1001 chattr -p 11 mnt/b/three
    unmounted mnt
    checked disk.img
}
