# timeout: 7200
# stress-ng's class of file-system stressors, all of them side by side on the mount, for ten
# minutes. Left out is binderfs, which mounts a file system of the kernel's own. stress-ng itself
# skips fiemap, a call that the kernel does not pass to FUSE mounts, and verity, a feature that xact
# refuses to write by name.

test_stress_ng() {
    needs stress-ng
    local seconds=${STRESS_SECONDS:-600} status=0
    # Far more than all of them need: a full volume would make some give up, as on any file system.
    volume disk.img --size 12G
    mounted disk.img mnt -o allow_other
    mkdir mnt/stress
    stress-ng --class filesystem --all 1 --exclude binderfs --timeout "$seconds" --temp-path "$WORK/mnt/stress" \
        --metrics-brief --oom-avoid >stress.log 2>&1 || status=$?
    mountpoint -q mnt || fail "the mount has ended: $(tail -n 20 stress.log)"
    equal "what stress-ng says is wrong" '' "$(grep -E '^stress-ng: (fail|error|warn):' stress.log | head -n 40)"
    equal "exit status of stress-ng" 0 $status
    equal "stressors skipped" "fiemap verity" \
        "$(sed -nE 's/.*\] ([a-z]+): .*skipping.*/\1/p' stress.log | sort -u | paste -sd ' ')"
    report "$(($(grep -o 'dispatching hogs: .*' stress.log | tr -cd , | wc -c) - 1)) other stressors side by side, $seconds s"
    rm -rf mnt/stress
    echo alive >mnt/file
    "$XACT" sync mnt
    unmounted mnt
    sound disk.img
}
