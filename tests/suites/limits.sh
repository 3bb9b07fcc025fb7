# timeout: 200
# Limits of ext4 that pjdfstest does not count to.

test_folders_in_a_folder() {
    volume disk.img --size 600M --inode-ratio 4K
    mounted disk.img mnt
    # Above 65,000 the link count of a folder is 1: unknown (dir_nlink).
    python3 -c '
import os
for i in range(65010):
    os.mkdir(f"mnt/{i}")
assert os.stat("mnt").st_nlink == 1, os.stat("mnt").st_nlink'
    unmounted mnt
    sound disk.img
}

# What a file's size may be: the same calls on kernel ext4 and on xact, and the same answers.
test_sparse_files_to_the_limit() {
    local options
    for options in "-b 4096" "-b 1024" "-b 1024 -O ^extents,^64bit"; do
        rm -f disk.img
        truncate -s 200M disk.img
        # shellcheck disable=SC2086  # words
        mke2fs -q -F -t ext4 $options disk.img
        at_the_limit() { # BLOCK SIZE
            python3 - "$1" "$options" <<'END'
import errno, os, sys
block, options = int(sys.argv[1]), sys.argv[2]
if "^extents" in options:
    pointers = block // 4
    largest = (12 + pointers + pointers**2 + pointers**3) * block
else:
    largest = (2**32 - 1) * block
def told(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, errno.errorcode[error.errno])
file = os.open("mnt/file", os.O_RDWR | os.O_CREAT)
told("behind the end", lambda: os.pwrite(file, b"x", largest))
told("at the end", lambda: os.pwrite(file, b"end", largest - 3))
print(os.fstat(file).st_size == largest, os.pread(file, 10, largest - 5))
told("in the middle", lambda: os.pwrite(file, b"middle", largest // 2))
# Of block-mapped files the kernel finds no data so far out, though it is there.
if "^extents" not in options:
    told("hole", lambda: os.lseek(file, 0, os.SEEK_DATA) <= largest // 2)
told("too large", lambda: os.ftruncate(file, largest + 1))
told("shorter", lambda: os.ftruncate(file, largest // 2 + 6))
told("largest again", lambda: os.ftruncate(file, largest))
print(os.pread(file, 10, largest // 2), os.pread(file, 10, largest - 5), os.fstat(file).st_blocks < 300)
END
        }
        kernel_mounted disk.img mnt
        at_the_limit "$(stat -fc %S mnt)" >expected
        rm mnt/file
        kernel_unmounted mnt
        mounted disk.img mnt
        at_the_limit "$(stat -fc %S mnt)" >told
        cmp expected told || fail "$options: $(diff expected told)"
        unmounted mnt
        sound disk.img
    done
}
