# timeout: 7200
# stress-ng's class of file-system stressors, all of them side by side on the mount, for ten minutes.
# Some want what no FUSE mount has, and say so; what counts is that the mount answers and the volume is sound.

test_stress_ng() {
    needs stress-ng
    local seconds=${STRESS_SECONDS:-600} status=0
    volume disk.img --size 4G
    mounted disk.img mnt -o allow_other
    mkdir mnt/stress
    stress-ng --class filesystem --all 1 --timeout "$seconds" --temp-path "$WORK/mnt/stress" \
        --metrics-brief --oom-avoid >stress.log 2>&1 || status=$?
    report "stress-ng ended with $status after $seconds s"
    sed -nE 's/^stress-ng: (fail|error): \[[0-9]+\] (.*)/# \1: \2/p' stress.log | sort | uniq | head -n 40
    mountpoint -q mnt || fail "the mount is gone: $(tail -n 20 stress.log)"
    rm -rf mnt/stress
    echo alive >mnt/file
    "$XACT" sync mnt
    unmounted mnt
    sound disk.img
    has stress.log '(successful|passed|skipped).*run'
}
