# timeout: 900
# POSIX behaviour: pjdfstest and fsx, on the mount and inside a transaction.
#
# All 398 tests of pjdfstest must pass, as on kernel ext4. 13 of them, of EROFS, remount the file
# system, and run separately: in the long run another test leaves a file open, and then they fail on
# kernel ext4 as well. In a transaction they are skipped, since they would make the mount read-only
# for all. The C library derives the limit of links of a file from the type of the file system, and
# does not know it for FUSE. config/link_max.c provides it. In a transaction link_count_max is
# skipped, since 65,000 links exceed the limit of a transaction. tests/config/pjdfstest.exceptions
# lists tests that may fail, each with its reason.

# pjdfstest measures the longest path against its own folder, and miscalculates when that path has
# certain lengths. This one is not among them.
POSIX_FOLDER=posix

# conformance FOLDER, TEST SKIPPED APART FROM THOSE OF EROFS, PREFIX OF THE COMMAND…
conformance() {
    local folder=$1/$POSIX_FOLDER others=$2 failures
    shift 2
    mkdir "$folder"
    # Some tests need two file systems.
    mkdir -p "$WORK/other"
    mount -t tmpfs none "$WORK/other"
    "$@" pjdfstest -c "$TESTS/config/pjdfstest.toml" -s "$WORK/other" -p "$folder" >pjdfstest.log 2>&1 || true
    umount "$WORK/other"
    has pjdfstest.log '^Summary: '
    report "$(grep '^Summary: ' pjdfstest.log)"
    failures=$(outcome FAILED)
    equal "tests that failed but should not" '' \
        "$(comm -23 <(printf '%s\n' "$failures" | sed '/^$/d') <(exceptions))"
    equal "skipped apart from those of EROFS" "$others" "$(outcome skipped | sed '/::erofs_/d')"
    equal "skipped of EROFS" 13 "$(outcome skipped | grep -c '::erofs_')"
    equal "all" 398 "$(sed -nE 's/^Summary: .* ([0-9]+) total$/\1/p' pjdfstest.log)"
}

# The tests that remount. mount(8) starts a program mount.fuse for FUSE mounts, if one exists, which
# takes the source for a program to start; -i prevents that.
read_only_conformance() { # FOLDER
    mkdir -p bin
    printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >bin/mount
    chmod +x bin/mount
    sed 's/^allow_remount = false/allow_remount = true/' "$TESTS/config/pjdfstest.toml" >remount.toml
    env PATH="$WORK/bin:$PATH" pjdfstest -c remount.toml -p "$1/$POSIX_FOLDER" erofs >pjdfstest.log 2>&1 || true
    has pjdfstest.log '^Summary: 0 failed, 0 skipped, 13 passed'
}

# Names of the tests of the last run with this outcome.
outcome() { awk -v how="$1" '$NF == how { print $1 }' pjdfstest.log | sort; }

exceptions() {
    sed -E 's/ *#.*//; /^$/d' "$TESTS/config/pjdfstest.exceptions" | sort
}

# Operations of fsx for each seed. 5 times 100,000 take some ten minutes on two cores: make qualify
# WORDS=fsx.
OPERATIONS=${FSX_OPERATIONS:-20000}
SEEDS=${FSX_SEEDS:-5}

# Not 7: late in its operations fsx reserves 0 bytes, and takes the EINVAL as a sign of a file
# system that cannot reserve, on kernel ext4 as well.
seeds() { seq $((SEEDS + (SEEDS >= 7))) | grep -vx 7; }

exerciser() { # FILE
    local seed
    for seed in $(seeds); do
        fsx -q -q -f "$TESTS/config/fsx.toml" -S $seed -N "$OPERATIONS" -P "$WORK" "$1" >fsx.log 2>&1 ||
            fail "fsx -S $seed -N $OPERATIONS: $(tail -n 30 fsx.log)"
    done
    report "$SEEDS seeds of $OPERATIONS operations"
}

# A volume by its kind: 1k, 2k and 4k are the block sizes of ext4; ext3, ext2.
posix_volume() { # IMG, KIND
    case $2 in
    [124]k) volume "$1" --size 1G --block-size "${2^^}" ;;
    ext[23])
        truncate -s 1G "$1"
        mke2fs -q -t "$2" -b 1024 "$1"
        ;;
    *) fail "no kind of volume: $2" ;;
    esac
}

# The volumes of the next test; all: POSIX_VOLUMES="1k 2k 4k ext3 ext2".
test_pjdfstest_on_the_mount() {
    needs pjdfstest mke2fs cc
    local kind
    cc -shared -fPIC -o link_max.so "$TESTS/config/link_max.c"
    for kind in ${POSIX_VOLUMES:-4k}; do
        posix_volume disk.img "$kind"
        mounted disk.img mnt -o allow_other
        conformance "$WORK/mnt" '' env LD_PRELOAD="$WORK/link_max.so"
        read_only_conformance "$WORK/mnt"
        report "on $kind"
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}

test_pjdfstest_in_a_transaction() {
    needs pjdfstest
    volume disk.img --size 1G
    mounted disk.img mnt -o allow_other
    conformance "$WORK/mnt" link::link_count_max "$XACT" run --at mnt --
    unmounted mnt
    sound disk.img
}

test_fsx_on_the_mount() {
    needs fsx
    volume disk.img
    mounted disk.img mnt
    exerciser mnt/file
    unmounted mnt
    sound disk.img
}

test_fsx_in_a_transaction() {
    needs fsx
    volume disk.img
    mounted disk.img mnt
    local seed
    for seed in $(seeds); do
        "$XACT" run --at mnt -- fsx -q -q -f "$TESTS/config/fsx.toml" -S $seed -N "$OPERATIONS" \
            -P "$WORK" "mnt/file$seed" >fsx.log 2>&1 ||
            fail "fsx -S $seed -N $OPERATIONS: $(tail -n 30 fsx.log)"
        [[ -s mnt/file$seed ]]
    done
    unmounted mnt
    sound disk.img
}

# as UID GID COMMAND…: without privileges.
as() {
    local uid=$1 gid=$2
    shift 2
    setpriv --reuid "$uid" --regid "$gid" --clear-groups -- "$@"
}

test_reserved_blocks_are_for_their_owner() {
    needs setpriv
    local kernel options
    for options in "-t ext4 -b 4096 -m 10" "-t ext4 -b 1024 -m 5" "-t ext2 -b 1024 -m 20"; do
        rm -f disk.img
        truncate -s 100M disk.img
        # shellcheck disable=SC2086  # words
        mke2fs -q -F $options -E root_owner=1000:1000 disk.img
        tune2fs -u 1001 -g 1002 disk.img >/dev/null
        kernel_mounted disk.img mnt
        kernel=$(stat -fc '%b %f %a %c %d %s' mnt)
        kernel_unmounted mnt
        mounted disk.img mnt
        equal "statfs with $options" "$kernel" "$(stat -fc '%b %f %a %c %d %s' mnt)"
        chmod 1777 mnt
        as 1000 1000 touch mnt/another
        exits 1 'No space left' -- as 1000 1000 dd if=/dev/zero of=mnt/user bs=16K status=none
        [[ $(stat -fc %a mnt) -lt 20 ]] || fail "a user stopped too early: $(stat -f mnt)"
        exits 1 'No space left' -- as 1000 1000 dd if=/dev/zero of=mnt/another bs=64K count=1 status=none
        if [[ $options == *ext4* ]]; then
            exits 1 'No space left' -- as 1000 1000 fallocate -n -l 1M mnt/another
            exits 1 'No space left' -- as 1000 1000 fallocate -z -l 1M mnt/another
        fi
        as 1001 1000 dd if=/dev/zero of=mnt/by-user bs=64K count=2 status=none
        as 1000 1002 dd if=/dev/zero of=mnt/by-group bs=64K count=2 status=none
        dd if=/dev/zero of=mnt/by-root bs=64K count=2 status=none
        unmounted mnt
        sound disk.img
    done
}

# read_anew PATH: reads a file past the kernel's cache; or a folder, which it has not listed before.
read_anew() {
    if [[ -d $1 ]]; then ls "$1" >/dev/null; else dd if="$1" of=/dev/null iflag=direct status=none; fi
}

# atime PATH
atime() { stat -c %X "$1"; }

OLD=1000000000

aged() { # PATH…: read long ago, and changed before that
    touch -d "@$((OLD - 1000))" -m "$@"
    touch -d "@$OLD" -a "$@"
}

test_access_times() {
    local options read folder fresh name was after
    # The effect of a read on the times of a file and a folder that are old, and of a file read
    # today.
    for options in "noatime - - -" "relatime new new -" "strictatime new new new" "relatime,nodiratime new - -" \
        "strictatime,lazytime new new new"; do
        read -r options read folder fresh <<<"$options"
        rm -f disk.img
        volume disk.img
        mounted disk.img mnt -o "$options"
        mkdir mnt/folder
        for name in file fresh quiet folder/inner; do echo x >mnt/$name; done
        chattr +A mnt/quiet
        unmounted mnt
        mounted disk.img mnt -o "$options"
        aged mnt/file mnt/quiet mnt/folder
        touch -a mnt/fresh
        read_anew mnt/fresh
        was=$(atime mnt/fresh)
        sleep 1.1
        for name in file quiet fresh folder; do read_anew mnt/$name; done
        check_time() { # NAME EXPECTED BEFORE
            local now
            now=$(atime "mnt/$1")
            if [[ $2 == new ]]; then
                [[ $now -gt $3 ]] || fail "$options: the read of $1 set no time"
            else
                equal "$options: time of $1" "$3" "$now"
            fi
        }
        check_time quiet - $OLD
        check_time file $read $OLD
        check_time folder $folder $OLD
        check_time fresh $fresh "$was"
        after=$(atime mnt/file)
        unmounted mnt
        sound disk.img
        kernel_mounted disk.img mnt ro
        equal "$options: kept" "$after" "$(atime mnt/file)"
        kernel_unmounted mnt
    done
}

# Beside the kernel's ext4: which kinds of reads set a time under each option, and the options in
# the table of mounts. FUSE does not carry three things (docs/guide/limits.md): reads of empty
# files, reads from the kernel's cache, and the attributes of statx.
test_access_times_beside_the_kernel() {
    local options engine kernel xact
    # Read calls on a file, an empty one, two folders and files with and without chattr +A, a link,
    # a program, a mapping, then the same file again, from the cache.
    reads() { # FOLDER
        local name old=$OLD
        mkdir "$1/folder" "$1/quiet-folder"
        for name in file empty quiet mapped folder/inner; do echo x >"$1/$name"; done
        : >"$1/empty"
        ln -s file "$1/link"
        cp /bin/true "$1/program"
        chattr +A "$1/quiet" "$1/quiet-folder"
        touch -h -m -d "@$((old - 1000))" "$1"/*
        touch -h -a -d "@$old" "$1"/*
        cat "$1/file" "$1/empty" "$1/quiet" >/dev/null
        ls "$1/folder" "$1/quiet-folder" >/dev/null
        readlink "$1/link" >/dev/null
        "$1/program"
        python3 -c 'import mmap, sys; f = open(sys.argv[1]); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[0]' "$1/mapped"
        for name in file quiet folder quiet-folder link program mapped empty; do
            if [[ $(atime "$1/$name") == "$old" ]]; then echo "$name: -"; else echo "$name: new"; fi
        done
        touch -a -d "@$old" "$1/file"
        cat "$1/file" >/dev/null
        if [[ $(atime "$1/file") == "$old" ]]; then echo "cached: -"; else echo "cached: new"; fi
        findmnt -n -o OPTIONS "$1" | tr , '\n' | sed -n /time/p | sort
    }
    mkdir mnt
    for options in noatime relatime strictatime relatime,nodiratime strictatime,nodiratime relatime,lazytime \
        strictatime,lazytime; do
        rm -f disk.img
        truncate -s 64M disk.img
        mke2fs -q -F -t ext4 disk.img
        mount -o "loop,$options" disk.img mnt
        reads mnt >kernel
        kernel_unmounted mnt
        rm disk.img
        volume disk.img
        mounted disk.img mnt -o "$options"
        reads mnt >xact
        unmounted mnt
        sound disk.img
        # The two kinds of reads that FUSE does not carry.
        sed -i 's/^\(empty\|cached\): new/\1: -/' kernel
        diff kernel xact || fail "$options: the kernel's is on the left"
    done
}

# Lazy times, and the calls that bring them to the disk, beside the kernel's ext4.
test_lazy_access_times_beside_the_kernel() {
    on_disk() { # FILE: whether the disk has its new time
        cp --sparse=always disk.img copy.img
        mkdir -p copy
        if [[ $by == kernel ]]; then mount -o loop copy.img copy; else mounted copy.img copy; fi
        if [[ $(atime "copy/$1") == "$OLD" ]]; then echo "$2: -"; else echo "$2: new"; fi
        if [[ $by == kernel ]]; then kernel_unmounted copy; else unmounted copy; fi
    }
    again() {
        if [[ $by == kernel ]]; then mount -o loop,strictatime,lazytime,commit=1 disk.img mnt
        else mounted disk.img mnt -o strictatime,lazytime,commit=1; fi
    }
    off() { if [[ $by == kernel ]]; then kernel_unmounted mnt; else unmounted mnt; fi; }
    local by name
    mkdir mnt
    for by in kernel xact; do
        rm -f disk.img
        if [[ $by == kernel ]]; then
            truncate -s 64M disk.img
            mke2fs -q -F -t ext4 disk.img
        else
            volume disk.img --size 64M
        fi
        again
        for name in waits synced changed all; do echo x >"mnt/$name"; done
        touch -m -d "@$((OLD - 1000))" mnt/*
        touch -a -d "@$OLD" mnt/*
        off
        again
        cat mnt/waits mnt/synced mnt/changed mnt/all >/dev/null
        sleep 6.5
        {
            on_disk waits "after its commit interval and the age of dirty data"
            sync mnt/synced
            on_disk synced "after fsync"
            chmod 600 mnt/changed
            sync mnt/changed
            on_disk changed "after another change"
            if [[ $by == kernel ]]; then sync -f mnt; else "$XACT" sync mnt; fi
            on_disk all "after a sync of the volume"
        } >$by
        off
    done
    diff kernel xact
}

# FUSE has no place for the attributes of statx that report chattr's flags, though the daemon sends
# them. lsattr shows the flags, and the time of birth is carried.
test_statx_attributes_are_not_carried() {
    needs chattr lsattr
    volume disk.img
    mounted disk.img mnt
    touch mnt/file
    chattr +d mnt/file
    has <(lsattr mnt/file) '^-+d'
    [[ $(stat -c %W mnt/file) -gt 0 ]] || fail "no time of birth"
    equal attributes 0 "$(python3 - <<'END'
import ctypes, struct
answer = ctypes.create_string_buffer(256)
assert ctypes.CDLL(None).statx(-100, b"mnt/file", 0, 0xfff, answer) == 0
# stx_attributes, without those of the mount.
print(struct.unpack_from("<Q", answer.raw, 8)[0] & 0x874)
END
)"
    unmounted mnt
}

# A change by chattr is seen at once, in a transaction too.
test_chattr_changes_ctime_at_once() {
    needs chattr
    volume disk.img
    mounted disk.img mnt
    touch mnt/file
    mkdir mnt/folder
    check_times() { # FILE COMMAND…
        local before after file=$1
        shift
        before=$(stat -c %z "$file")
        sleep 0.02
        "$@" "$file"
        after=$(stat -c %z "$file")
        [[ $before != "$after" ]] || fail "$* $file: ctime is still $before"
    }
    check_times mnt/file chattr +A
    check_times mnt/folder chattr +d
    export -f check_times fail
    "$XACT" run --at mnt -- bash -ec 'check_times mnt/file chattr -A; check_times mnt/folder chattr -d'
    unmounted mnt
}
