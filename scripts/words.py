#!/usr/bin/env python3
"""Finds words that the project does not use, comments over 100 columns, and long commit subjects.

    scripts/words.py              check the tree; every finding fails the check
    scripts/words.py PATH...      list the findings in these files or folders

The table `RULES` says what to find.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCEPT = {"CHANGELOG.md", "scripts/words.py"}
SUFFIXES = {".rs", ".md", ".sh", ".py", ".c", ".h", ".toml"}
COLUMNS_MAX = 100
SUBJECT_MAX = 72

Rule = collections.namedtuple("Rule", "kind pattern advice paths sound")


def in_code(pattern, advice, paths=""):
    """A name to find in code and between backticks, in the files whose paths match."""
    return Rule("code", pattern, advice, paths, None)


def in_path(pattern, advice):
    """A name to find in the path of a file."""
    return Rule("path", pattern, advice, "", None)


def in_prose(pattern, advice, sound=None):
    """Words to find in comments, string literals and pages, except in what is sound English. A space
    matches any white space, the end of a line too."""
    return Rule("prose", pattern, advice, "", sound)


def at_start(pattern, advice):
    """Words with which no comment begins."""
    return Rule("start", pattern, advice, "", None)


PERSONS = "user|users|person|people|persons|reader|readers|administrator|author|attacker|member|members|those|anyone|everyone"
BE = "(?:is|are|was|were|be|been)"


# What to find, and what to say instead. All patterns are regular expressions.
RULES = [
    in_code(r"\bxact[-_]base\b|\bcrates/base\b", "xact-types"),
    in_code(r"\bBase\b", "LiveFs, or Live for a variant", r"crates/"),
    in_code(r"\bBaseTree\b|\btrait Tree\b", "Operation, InodeOps"),
    in_code(r"\b(?:fs/src|xact_fs::)/?base\b", "live"),
    in_code(r"(?<!cell::)\bCells?\b(?!::new|<)", "CachedInode or InodeCache; in a test, the noun it is", r"crates/"),
    in_code(r"\bNeeds\b", "Budget"),
    in_code(r"\bRights\b", "Privileges"),
    in_code(r"\bwant_quota\b|\bexpect_(?!err\b)\w+", "reserve_*", r"crates/fs/src/"),
    in_code(r"promis", "reserve, reservation", r"crates/(?:fs|fuse|txn)/"),
    in_code(r"\bRoom\b", "ReserveClass, or the noun it is"),
    in_code(r"\bConduct\b", "ErrorPolicy"),
    in_code(r"\bjudged\b|\brun_unjudged\b", "note_corruption, run_inner", r"crates/(?:fs|fuse|txn|xact)/"),
    in_code(r"\bas_of\b|\bViewHold\b|\bviews\.rs", "mvcc/reads.rs, ReadView, mvcc/stamps.rs"),
    in_code(r"\bfn draw\b", "next_stamp, or the verb it is", r"crates/(?:fs|txn)/"),
    in_code(r"\bGathered\b", "WritebackBatch"),
    in_code(r"\bHabit\b", "WritePattern"),
    in_code(r"\bhint\b(?!: (?:WriteHint|write_hint)\b)", "lock_hint", r"crates/fs/"),
    in_code(r"\bmod (?:cut|draw|chosen|part)\b", "prune, synthesize, selection, partial", r"crates/(?:fs|txn|xact)/"),
    in_code(r"\bTurns\b", "ContentionManager, or the noun it is"),
    in_code(r"\bClaim\b", "PriorityClaim, or the noun it is"),
    in_code(r"\bLosses\b", "AbortHistory"),
    in_code(r"\bLost\b", "LostAttempt"),
    in_code(r"(?<!conflicting_tx as )\bwinner\b", "conflicting_tx",
            # Except where it is the former name of a field.
            r"(?!include/|crates/control/tests/header\.rs|python/xact/|tests/(?:test_package\.py|suites/capi\.sh))"),
    in_code(r"\bReads\b", "ReadSet"),
    in_code(r"\bAudience\b", "CommitObserver"),
    in_code(r"\bwitness\w*", "fingerprint", r"crates/(?:fs|txn)/"),
    in_code(r"\bmod kept\b|\bKept\b", "persisted, SnapshotEntry, or the noun it is", r"(?!crates/control/)"),
    in_code(r"\bAway\b", "OfflineChanges"),
    in_code(r"\blimbo\b|\bcheck_hopeful\b", "unlinked_numbers, check_not_doomed"),
    in_code(r"\blooked_in_passing\b|\bbury_\w+", "kernel_stat_only, drop_all_links or reap_unlinked"),
    in_code(r"\b[Vv]eil\w*|\bCurtain\b|\bCast\b", "CacheFence, Publisher, Affected, publish"),
    in_code(r"\blift\b|\bshut\b", "release, block", r"crates/fuse/src/"),
    in_code(r"\bCalm\b|\bSeat\b|\bseat\b|\bmodest\w*", "SingleCaller, CpuPin, idle_worker", r"crates/"),
    in_code(r"\bsit_down\b|\bstand_up\b|relieve", "lower_priority, raise_priority, restore_priority"),
    in_code(r"\bBESIDE\b|\bAGAIN\b|\bRUN\b", "a constant that names what it counts", r"(?:crates|bench)/"),
    in_code(r"\bAside\b|\bstep_aside\b", "Parked, park"),
    in_code(r"\bsettle\b", "free_buffers, or the verb it is", r"crates/fuse/"),
    in_code(r"\bmod registry\b|\bserver::registry\b", "transactions", r"crates/fuse/"),
    in_code(r"\bTold\b|\btold\b|\btell\b(?!\()", "TxInfo, or the noun it is"),
    in_code(r"\bStanding\b|\bPass\b(?! \[1-5\])", "TxStatus, ViewGuard"),
    in_code(r"\bKnown\b", "KernelRefs, or the noun it is"),
    in_code(r"\bmod (?:hidden|past|keeping|deciding|ending|contents|opened|owner)\b",
     "control_dir, snapshot_dirs, keep_ioctl, tx_ioctl, tx_end, io, open_snapshots, process", r"crates/fuse/src/"),
    in_code(r"\bxact[-_]inside\b|\bcrates/inside\b", "xact-namespace"),
    in_code(r"\bmod about\b|\bAbout\b|\bInTheWay\b|\bclient::Inner\b", "FileIdentity, Busy, SavepointHandle, or the noun it is"),
    in_code(r"\bmod (?:around|calls|border)\b|\btelling_or\b", "thread_tx, exports, ffi_guard, with_last_error", r"crates/capi/"),
    in_code(r"\bplace\b", "mount_path", r"crates/capi/src/"),
    in_code(r"\bmod keep\b|\bKeepRules\b", "retention, RetentionPolicy"),
    in_code(r"\bFiles\b", "PathExt, or the noun it is"),
    in_code(r"\bolder\b", "draining", r"crates/consistency/"),
    in_code(r"\bhand_on\b|reach_back|\bupdate_apart\b", "charge_next, join_draining, update_per_version"),
    in_code(r"\bis_young_again\b|\bPATIENCE\b", "reset_age, WAITS_MAX; a limit in time: TIMEOUT"),
    in_code(r"\bheld\b|\blive\b", "snapshot_refs, published_map", r"crates/consistency/src/generations/"),
    in_code(r"\bsweep\w*", "writeback_home, or the noun it is"),
    in_code(r"\bWay\b|\bSeen\b", "CommitKind, GenerationReader, or the noun it is"),
    in_code(r"\bplace\b", "pool block", r"crates/consistency/src/generations/"),
    in_code(r"\bNoneEngine\b|\bsuperblock_home\b", "Unjournaled, superblock_io"),
    in_code(r"\bShared\b", "Core", r"crates/consistency/"),
    in_code(r"\bmod (?:behind|direct)\b|\bWaits\b|\bpass_on\b", "write_behind, direct_io, WriteHint, flush_page_cache_range"),
    in_code(r"\b(?:mod|crate::|testkit::)\s*(?:late|gate|sittings|session)\b|\bLane\b|held_back",
     "draining_ops, stall, resume, driver, ThreadHistory, stalled", r"crates/testkit/|crates/fs/tests/"),
    in_code(r"(?<!thread::)(?<!\.)\bspawn(?:ed|s)?\b(?!ed by)", "close_and_open_next", r"crates/consistency/"),
    in_code(r"\bdeclined\b", "aborted", r"crates/"),

    in_path(r"/(?:room|whole|views|as_of|draw|chosen)\.rs$", "reserve_class.rs, health.rs, reads.rs, stamps.rs, synthesize.rs, selection.rs"),
    in_path(r"^crates/fs/src/(?:base|cut)/|/kept(?:/|\.rs$)", "live/, prune/, persisted/"),
    in_path(r"^crates/fuse/src/.*/(?:registry|hidden|past|keeping|deciding|ending|contents|opened|owner)\.rs$", "control_dir.rs, ..."),
    in_path(r"^crates/capi/.*/(?:around|calls|border)\.rs$|^tests/around\.c$", "thread_tx, exports, ffi_guard"),
    in_path(r"^crates/xact/src/keep\.rs$|^crates/cli/src/size\.rs$", "retention.rs, values.rs"),
    in_path(r"^crates/consistency/.*/(?:older|held|live|sweep)\.rs$", "draining.rs, snapshot_refs.rs, published_map.rs, writeback_home.rs"),
    in_path(r"^crates/testkit/.*/(?:late|gate|sittings|session|lies|held_back|spawning)\.rs$",
     "draining_ops, stall, resume, driver, lying_device, stalled_device"),
    in_path(r"^crates/check/tests/sweep\.rs$|spawning\.md$", "the noun it is"),

    in_prose(r"\bwho\b", "name the process, thread or caller", rf"\b(?:{PERSONS}),? who\b"),
    in_prose(r"\b(?:whoever|whom|whomever)\b", "name the process, thread or caller"),
    in_prose(r"\b(?:he|him|his|himself)\b", "it or they; name the process, thread or user"),
    in_prose(r"\b(?:nobody|somebody)\b", "no one, no other thread, another process, ...",
             r"\bas_nobody\b|\b(?:reuid|chown|owner|id -[ug]) nobody\b|\"nobody\""),
    in_prose(r"\b(?:tells?|told|telling)\b", "return, report, print, say, log", r"\b(?:tells?|told|telling)(?: [\w'-]+){0,5} apart\b"),
    in_prose(r"\banew\b", "again, from scratch"),
    in_prose(r"\bfor good\b", "permanently, finally", r"\bfor good (?:reason|measure|cause)"),
    in_prose(r"\b(?:lets?|letting) go of\b", "release, drop"),
    in_prose(r"\bbesides\b", "also, in addition, other than"),
    in_prose(r"\bmeanwhile\b|\bin the meantime\b", "since then, concurrently, in between"),
    in_prose(r"\bso many\b", "that many, as many, n", r"\bso many(?: \w+){1,4} that\b"),
    in_prose(r"\bat the (?:most|least|latest)\b", "at most, at least, no later than"),
    in_prose(r"\bby (?:itself|themselves)\b", "on its own, automatically, separately"),
    in_prose(r"\b(?:has|have|had|is|be|with|where|if) room for\b", "fits, holds, leaves space for"),
    in_prose(r"\bmend(?:s|ed|ing)?\b", "repair, fix"),
    in_prose(r"\b(?:goes|go|went|gone|going) on\b", "continue, resume", r"\bgo(?:es)? on (?:a|the|top|its|their)\b"),
    in_prose(rf"\b{BE} gone\b", "was deleted, has ended, no longer exists"),
    in_prose(r"\b(?:is|are|was|were) there(?=\s*(?:[.,;:)]|and\b|or\b|but\b|when\b|until\b|already\b|too\b))", "exists",
     r"\b(?:how|as) (?:many|much|long|often)\b[^.]{0,30} there\b"),
    in_prose(r"\b(?:is|are|was|were) no \w+", "is not a ...; invalid ...",
     r"\b(?:[Tt]here|[Ww]here) (?:is|are|was|were) no \w+|\bno (?:longer|more|less|better|worse|other|different|way|need|doubt|one)\b"),
    in_prose(r"\bnone of (?:ours|theirs|his|what)\b|\b(?:is|are) none of this\b", "no part of, nothing that, no such ..."),
    in_prose(r"\bas (?:[\w'-]+ ){1,4}(?:has|have|had) (?:it|them)\b", "as in, according to"),
    in_prose(r"\bspawning\b", "non-blocking commit close; of a process: start"),

    at_start(r"(?:Of|To|Where|What|Who|Whoever|Whom)\b", "begin a comment with its noun or verb"),
]

TOKENS = {
    ".rs": r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>(?<!\w)[bc]?r(?P<h>\#*)".*?"(?P=h)|"(?:\\.|[^"\\])*")"""
           r"""|'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'\n])'""",
    ".c": r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:\\.|[^"\\\n])*")|'(?:\\.|[^\\'\n])+'""",
    ".py": r"""(?P<comment>\#[^\n]*|\"\"\".*?\"\"\"|\'\'\'.*?\'\'\')|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    ".toml": r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"|'[^'\n]*')""",
    # Strings, here-documents and commands of a shell script are searched as code and as prose.
    ".sh": r"""(?P<comment>(?:(?<=\s)|\A)\#[^\n]*)""",
}
TOKENS[".h"] = TOKENS[".c"]
TOKENS = {suffix: re.compile(tokens, re.DOTALL) for suffix, tokens in TOKENS.items()}
LEADER = re.compile(r"""^[ \t]*(?://[/!]?|\#!?|/?\*+/?|\"\"\"|\'\'\')""", re.MULTILINE)
ENDING = re.compile(r"""(?:\*/|\"\"\"|\'\'\')$""")
BACKTICKS = re.compile(r"`[^`\n]*`")

Finding = collections.namedtuple("Finding", "line text advice")


def blank(text):
    """The same number of lines, without a word."""
    return re.sub(r"[^\s\0]+", "\0", text)


def words_of(match):
    """A comment without its marks, a string without its escapes, anything else blank, in as many lines."""
    token = match.group()
    if match.group("comment") is not None:
        return LEADER.sub(lambda leader: " " * len(leader.group()), token)
    if match.group("string") is not None:
        return re.sub(r"\\([nt\n])", lambda escape: " \n" if escape.group(1) == "\n" else "  ", token)
    return blank(token)


def split(text, suffix):
    """A file's code and its prose, each with as many lines as the file."""
    if suffix == ".md":
        code, prose = blank(text), text
    elif suffix == ".sh":
        code, prose = text, LEADER.sub(lambda leader: " " * len(leader.group()), text)
    else:
        code, prose, end = "", "", 0
        for match in TOKENS[suffix].finditer(text):
            between = text[end : match.start()]
            code += between + blank(match.group())
            prose += blank(between) + words_of(match)
            end = match.end()
        code, prose = code + text[end:], prose + blank(text[end:])
    if suffix != ".sh":
        quoted, end = "", 0
        for match in BACKTICKS.finditer(prose):
            quoted += blank(prose[end : match.start()]) + match.group()
            end = match.end()
        names, prose = quoted + blank(prose[end:]), BACKTICKS.sub("\0", prose)
        code = "\n".join(f"{line} {more}" for line, more in zip(code.split("\n"), names.split("\n")))
    return re.sub(r"[ \0]*\0[ \0]*", "\0", code), re.sub(r"[ \0]*\0[ \0]*", "\0", prose)


def comments(text, suffix):
    """The lines on which nothing but a comment is: number, text without marks, and whether a paragraph begins there."""
    previous, last = "", 0
    for match in TOKENS[suffix].finditer(text) if suffix in TOKENS else ():
        line_start = text.rfind("\n", 0, match.start()) + 1
        if match.group("comment") is None or text[line_start : match.start()].strip():
            continue
        number = text.count("\n", 0, match.start()) + 1
        for n, line in enumerate(match.group().split("\n"), number):
            words = ENDING.sub("", LEADER.sub("", line)).strip()
            yield n, words, bool(words) and (n != last + 1 or not previous)
            previous, last = words, n


def matches(text, rule):
    """The matches of a rule in code or prose, except in what is sound English."""
    if rule.sound:
        text = re.sub(rule.sound.replace(" ", r"\s+"), lambda match: blank(match.group()), text)
    return re.finditer(rule.pattern.replace(" ", r"\s+") if rule.kind == "prose" else rule.pattern, text)


def findings(path, text):
    """Every finding in a file, by line."""
    suffix = pathlib.PurePath(path).suffix
    names, words = split(text, suffix)
    lines, starts = text.split("\n"), []
    found = []
    for number, comment, begins in comments(text, suffix):
        columns = len(lines[number - 1])
        if columns > COLUMNS_MAX and "://" not in lines[number - 1]:
            found.append((number, f"{columns} columns", f"at most {COLUMNS_MAX} in a comment"))
        if begins:
            starts.append((number, comment))
    for rule in RULES:
        if not re.match(rule.paths, path):
            continue
        if rule.kind == "path":
            found += [(0, path, rule.advice)] if re.search(rule.pattern, path) else []
        elif rule.kind == "start":
            found += [(number, comment[:40], rule.advice) for number, comment in starts if re.match(rule.pattern, comment)]
        else:
            where = names if rule.kind == "code" else words
            found += [(where.count("\n", 0, match.start()) + 1, " ".join(match.group().split()), rule.advice)
                      for match in matches(where, rule)]
    return [Finding(*finding) for finding in sorted(found)]


def git(*arguments):
    """The lines that git prints; none where this is not a git repository."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def tree():
    """The paths of all files that are searched."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard")
    paths = paths or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if "target" not in path.parts]
    return sorted(path for path in set(paths) - EXCEPT
                  if pathlib.PurePath(path).suffix in SUFFIXES and (ROOT / path).is_file())


def all_findings(paths):
    return {path: found for path in paths if (found := findings(path, (ROOT / path).read_text(errors="replace")))}


def show(path, found):
    for finding in found:
        print(f"{path}:{finding.line}: {finding.text}: {finding.advice}")


def check(found):
    """Whether the tree has no finding; prints those that it has."""
    for path, of_path in found.items():
        show(path, of_path)
    if found:
        print("words: docs/GLOSSARY.md has the words to use instead", file=sys.stderr)
    return not found


def check_subjects():
    """Whether the subjects of all commits since this check was added are short enough."""
    since = git("log", "--diff-filter=A", "--format=%H", "--", "scripts/words.py")
    if not since:
        return True
    subjects = git("log", "--no-merges", "--format=%h %s", f"{since[-1]}..HEAD")
    long = [line for line in subjects if len(line.split(" ", 1)[1]) > SUBJECT_MAX]
    for line in long:
        print(f"words: subject of over {SUBJECT_MAX} characters: {line}", file=sys.stderr)
    return not long


def self_test():
    """The check finds what it is for, and nothing in sound English."""

    def texts(path, text):
        return [(finding.line, finding.text) for finding in findings(path, text)]

    rust = "crates/fs/src/x.rs"
    for text, expected in [
        ("// The lock, for\n// who waits.\nfn who() {}\n", [(2, "who")]),
        ("// A user who mounts, and people who read.\n", []),
        ("/// It goes\n/// on.\n", [(1, "goes on")]),
        ("// This goes\nlet on = 1;\n", []),
        ('let s = "it was\\\n    told";\n', [(2, "told")]),
        ("// Tells them well apart.\n", []),
        ("// Keeps the base of the log, and an untold number.\nlet keep = base.keep(10);\n", []),
        ("/// To find the block.\n", [(1, "To find the block.")]),
        ("/// A list, or\n/// To be.\n///\n/// What is free.\n", [(4, "What is free.")]),
        ("let x = '\"'; // Of all\nlet y = \"a // who\";\n", [(2, "who")]),
        ("fn f(needs: Needs<'_>) {}\n// It needs [`Needs`]. Needs room.\n", [(1, "Needs"), (2, "Needs")]),
        ("use std::cell::Cell;\nstruct Cell;\n", [(2, "Cell")]),
        ("// " + "x" * 98 + "\n" + "y" * 120 + "\n", [(1, "101 columns")]),
        ("// There is no lock. This is no lock. It is no longer one.\n", [(1, "is no lock")]),
        ("// It is there, and so is there one. Is there any?\n", [(1, "is there")]),
    ]:
        assert texts(rust, text) == expected, (text, texts(rust, text))
    assert texts("docs/X.md", "The file `Needs` of\nsomebody.\n") == [(1, "Needs"), (2, "somebody")]
    assert texts("a.sh", "# Who may\necho 'nobody'; who\n") == [(1, "Who may"), (2, "nobody"), (2, "who")]
    assert texts("a.py", 'def f():\n    """What is free."""\n    return "anew"\n') == [(2, "What is free."), (3, "anew")]
    assert texts("a.c", "/* It is\n * gone. */\nint gone;\n") == [(1, "is gone")]
    assert texts("crates/fs/src/room.rs", "") == [(0, "crates/fs/src/room.rs")]


def main(arguments):
    self_test()
    if arguments:
        wanted = [pathlib.Path(argument).resolve() for argument in arguments]
        chosen = [path for path in tree() if any((ROOT / path).is_relative_to(prefix) for prefix in wanted)]
        for path, found in all_findings(chosen).items():
            show(path, found)
        return None
    holds = [check(all_findings(tree())), check_subjects()]
    return None if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
