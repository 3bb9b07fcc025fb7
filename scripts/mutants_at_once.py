#!/usr/bin/env python3
"""Seeds the faults of cargo-mutants, all in one build, and runs the tests that reach each.

  scripts/mutants_at_once.py PART... [--sitting K/N] [--seconds N] [--missed FILE]

--seconds ends each part after this time; its faults are in random order.

cargo-mutants builds the crate once for each fault, which takes most of its time. Here each fault is
a branch in one build, and the environment variable MUTANT picks one. Each test runs once to learn
which faults it reaches; then only these tests run for a fault. A fault that does not compile is
left out, as there. The kinds of faults are those of cargo-mutants 27: other operators, removed
operators, match arms, guards and fields, and functions that return a fixed value. Faults in const
and unsafe functions are left out.

Needs tree-sitter and tree-sitter-rust (pip). The copy of the tree is in target/mutants/tree.
"""

import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import tree_sitter_rust
from tree_sitter import Language, Parser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
WORK = os.path.join(TARGET, "mutants")
TREE = os.path.join(WORK, "tree")
EQUIVALENT = os.path.join(ROOT, "tests", "mutants", "equivalent.txt")
JOBS = int(os.environ.get("JOBS", "1"))

# Part: files; and the tests: package, target of cargo ("lib" or a name), a filter of names.
PARTS = {
    "layout": (["crates/layout/src/**/*.rs"],
               [("xact-layout", "lib", ""), ("xact-layout", "fields", ""), ("xact-layout", "sums", ""),
                ("xact-layout", "records", ""), ("xact-layout", "images", "")]),
    "quota": (["crates/fs/src/quota.rs", "crates/fs/src/quota/*.rs"], [("xact-fs", "lib", "live::tests")]),
    "retention": (["crates/xact/src/retention.rs"], [("xact", "lib", "retention")]),
    "persisted": (["crates/txn/src/persisted/*.rs"], [("xact-txn", "lib", "")]),
    "txn": (["crates/txn/src/**/*.rs"], [("xact-txn", "lib", "")]),
    "check": (["crates/check/src/**/*.rs"],
              [("xact-check", "lib", ""), ("xact-check", "copies", ""), ("xact-check", "generations", ""),
               ("xact-check", "uses", ""), ("xact-check", "agreement", "")]),
    "server": (["crates/fuse/src/server/**/*.rs"],
               [("xact-fuse", "lib", ""), ("xact-fuse", "transactions", ""), ("xact-fuse", "client", "")]),
    "control": (["crates/control/src/**/*.rs"], [("xact-control", "header", ""), ("xact-fuse", "transactions", ""),
                 ("xact-fuse", "client", "")]),
}

BINARY = {
    "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"], "<": ["==", ">", "<="], ">": ["==", "<", ">="],
    "<=": [">"], ">=": ["<"], "+": ["-", "*"], "-": ["+", "/"], "*": ["+", "/"], "/": ["%", "*"],
    "%": ["/", "+"], "<<": [">>"], ">>": ["<<"], "&": ["|", "^"], "|": ["&", "^"], "^": ["|", "&"],
    "+=": ["-=", "*="], "-=": ["+=", "/="], "*=": ["+=", "/="], "/=": ["%=", "*="], "%=": ["/=", "+="],
    "<<=": [">>="], ">>=": ["<<="], "&=": ["|="], "|=": ["&="], "^=": ["|=", "&="],
}

RUNTIME = """
#[allow(missing_docs, dead_code)]
pub mod __mutant {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    static CHOSEN: OnceLock<(u32, Option<std::path::PathBuf>)> = OnceLock::new();
    static SEEN: [AtomicBool; 32768] = [const { AtomicBool::new(false) }; 32768];
    pub fn on(id: u32) -> bool {
        let (chosen, trace) = CHOSEN.get_or_init(|| {
            let number = std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            (number, std::env::var_os("MUTANT_TRACE").map(Into::into))
        });
        if let Some(path) = trace && !SEEN[id as usize].swap(true, Relaxed) {
            use std::io::Write;
            let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{id}\\n").as_bytes()).unwrap();
        }
        *chosen == id
    }
}
"""

PARSER = Parser(Language(tree_sitter_rust.language()))


class Mutants:
    def __init__(self):
        self.all = {}
        self.ids = {}

    def id(self, key, text):
        """The number of a fault, the same in each round."""
        if key not in self.ids:
            self.ids[key] = len(self.ids) + 1
            self.all[self.ids[key]] = text
        return self.ids[key]


class Rewriter:
    """Rewrites one file. `bad`: faults that did not compile."""

    def __init__(self, path, source, mutants, bad):
        self.path, self.source, self.mutants, self.bad = path, source, mutants, bad
        self.functions = []

    def text(self, node):
        return self.source[node.start_byte:node.end_byte].decode()

    def fault(self, node, what):
        row = node.start_point[0] + 1
        name = self.functions[-1] if self.functions else "?"
        key = (self.path, node.start_byte, what)
        number = self.mutants.id(key, f"{self.path}:{row}:{node.start_point[1] + 1}: {what} in {name}")
        return None if number in self.bad else number

    @staticmethod
    def marked(number, text):
        return f"/*m{number}*/{text}/*e{number}*/"

    def children(self, node, replaced=()):
        """The text of a node with its children rewritten."""
        out, at = [], node.start_byte
        for child in node.children:
            out.append(self.source[at:child.start_byte].decode())
            out.append(self.rewrite(child))
            at = child.end_byte
        out.append(self.source[at:node.end_byte].decode())
        return "".join(out)

    def rewrite(self, node):
        kind = node.type
        if kind in ("const_item", "static_item", "macro_invocation", "macro_definition", "attribute_item",
                    "inner_attribute_item", "enum_item", "struct_item", "line_comment", "block_comment",
                    "array_type", "type_arguments", "const_block"):
            return self.text(node)
        if kind in ("source_file", "declaration_list", "block"):
            return self.sequence(node)
        if kind == "function_item":
            return self.function(node)
        if kind == "impl_item":
            trait = node.child_by_field_name("trait")
            self.in_default = trait is not None and self.text(trait) == "Default"
            of = self.text(node.child_by_field_name("type"))
            before = getattr(self, "of", None)
            self.of = of
            text = self.children(node)
            self.of, self.in_default = before, False
            return text
        if not self.functions:
            return self.children(node)
        if kind in ("binary_expression", "compound_assignment_expr"):
            return self.binary(node)
        if kind == "unary_expression":
            return self.unary(node)
        if kind == "match_block":
            return self.match(node)
        if kind == "struct_expression":
            return self.fields(node)
        return self.children(node)

    def sequence(self, node):
        """Items or statements; those for tests are left as they are."""
        out, at, for_tests = [], node.start_byte, False
        for child in node.children:
            out.append(self.source[at:child.start_byte].decode())
            text = self.text(child)
            if child.type == "attribute_item":
                for_tests |= bool(re.search(r"\btest\b", text))
                out.append(text)
            elif child.type in ("line_comment", "block_comment"):
                out.append(text)
            else:
                out.append(text if for_tests else self.rewrite(child))
                for_tests = False
            at = child.end_byte
        out.append(self.source[at:node.end_byte].decode())
        return "".join(out)

    def function(self, node):
        body = node.child_by_field_name("body")
        modifiers = next((self.text(c) for c in node.children if c.type == "function_modifiers"), "")
        if body is None or "const" in modifiers or "unsafe" in modifiers:
            return self.text(node)
        name = self.text(node.child_by_field_name("name"))
        of = getattr(self, "of", None)
        self.functions.append(f"{of}::{name}" if of else name)
        returned = node.child_by_field_name("return_type")
        values = [] if getattr(self, "in_default", False) and name == "default" else self.values(returned)
        if returned is None and not [c for c in body.named_children if "comment" not in c.type]:
            values = []
        head = []
        for value in values:
            number = self.fault(node, f"replace {self.functions[-1]} with {value or '()'}")
            if number:
                result = self.marked(number, value)
                head.append(f"if crate::__mutant::on({number}) {{ return {result}; }} ")
        inside = self.rewrite(body)
        text = self.source[node.start_byte:body.start_byte].decode() + "{ " + "".join(head) + inside[1:]
        self.functions.pop()
        return text

    def values(self, returned):
        if returned is None:
            return [""]
        return self.values_of(self.text(returned))

    def values_of(self, kind, depth=0):
        kind = kind.strip()
        if kind == "()":
            return ["()"]
        if kind in ("bool",):
            return ["true", "false"]
        if re.fullmatch(r"u(8|16|32|64|128|size)", kind):
            return ["0", "1"]
        if re.fullmatch(r"i(8|16|32|64|128|size)", kind):
            return ["0", "1", "-1"]
        if kind == "String":
            return ["String::new()", '"xyzzy".into()']
        if re.fullmatch(r"&('\w+ )?str", kind):
            return ['""', '"xyzzy"']
        if kind.startswith("impl ") or kind in ("!", "Self") and kind == "!":
            return []
        match = re.fullmatch(r"&('\w+ )?(mut )?\[(.*)\]", kind)
        if match:
            inner = [f"Vec::leak(vec![{v}])" for v in self.values_of(match[3], depth + 1)]
            return ["Vec::leak(Vec::new())", *inner]
        match = re.fullmatch(r"&('\w+ )?(mut )?(.*)", kind)
        if match:
            return [f"Box::leak(Box::new({v}))" for v in self.values_of(match[3], depth + 1)]
        match = re.fullmatch(r"(?:\w+::)*(Result|Option|Vec|Box|Arc|Rc|Cow)<(.*)>", kind)
        if match:
            first = self.split(match[2])[0]
            inner = self.values_of(first, depth + 1)
            if match[1] == "Result":
                return [f"Ok({v})" for v in inner]
            if match[1] == "Option":
                return ["None", *(f"Some({v})" for v in inner)]
            if match[1] == "Vec":
                return ["Vec::new()", *(f"vec![{v}]" for v in inner)]
            if match[1] == "Cow":
                return ["Default::default()"]
            return [f"{match[1]}::new({v})" for v in inner]
        if kind in ("Result", "io::Result"):
            return ["Ok(())"]
        match = re.fullmatch(r"\[(.*); (.*)\]", kind)
        if match:
            return [f"[{v}; {match[2]}]" for v in self.values_of(match[1], depth + 1)]
        if kind.startswith("("):
            parts = [self.values_of(part, depth + 1) for part in self.split(kind[1:-1]) if part.strip()]
            found = [[]]
            for part in parts:
                found = [[*before, value] for before in found for value in part][:8]
            return [f"({', '.join(values)})" for values in found] if all(parts) else []
        return ["Default::default()"]

    @staticmethod
    def split(text):
        parts, depth, last = [], 0, 0
        for at, char in enumerate(text):
            depth += (char in "<([") - (char in ">)]" and text[at - 1] != "-")
            if char == "," and depth == 0:
                parts.append(text[last:at])
                last = at + 1
        return [*parts, text[last:]]

    def choose(self, options, plain):
        """An expression with the chosen option, or the plain one."""
        if not options:
            return plain
        branches = "".join(
            f"if crate::__mutant::on({number}) {{ {self.marked(number, text)} }} else "
            for number, text in options
        )
        return f"({branches}{{ {plain} }})"

    def binary(self, node):
        operator = node.child_by_field_name("operator")
        sign = self.text(operator)
        before = self.source[node.start_byte:operator.start_byte].decode()
        after = self.source[operator.end_byte:node.end_byte].decode()
        options = []
        for other in BINARY.get(sign, []):
            number = self.fault(operator, f"replace {sign} with {other}")
            if number:
                options.append((number, before + other + after))
        return self.choose(options, self.children(node))

    def unary(self, node):
        sign = self.text(node.children[0])
        if sign not in ("!", "-"):
            return self.children(node)
        number = self.fault(node, f"delete {sign}")
        options = [(number, self.text(node.children[1]))] if number else []
        return self.choose(options, self.children(node))

    def match(self, node):
        arms = [c for c in node.children if c.type == "match_arm"]
        patterns = [arm.child_by_field_name("pattern") for arm in arms]
        conditions = [pattern.child_by_field_name("condition") for pattern in patterns]
        has_rest = any(
            condition is None and self.text(pattern) == "_" for pattern, condition in zip(patterns, conditions)
        )
        out, at = [], node.start_byte
        for arm, pattern, condition in zip(arms, patterns, conditions):
            out.append(self.source[at:arm.start_byte].decode())
            value = arm.child_by_field_name("value")
            plain = self.source[pattern.start_byte:(condition or pattern).start_byte].decode() \
                if condition else self.text(pattern)
            guards = []
            if has_rest and self.text(pattern) != "_":
                number = self.fault(arm, "delete match arm " + " ".join(self.text(pattern).split()))
                if number:
                    guards.append(self.marked(number, f"!crate::__mutant::on({number})"))
            if condition is not None:
                inner = self.rewrite(condition)
                yes = self.fault(condition, "replace match guard with true")
                no = self.fault(condition, "replace match guard with false")
                if yes:
                    inner = f"({self.marked(yes, f'crate::__mutant::on({yes})')} || ({inner}))"
                if no:
                    inner = f"({self.marked(no, f'!crate::__mutant::on({no})')} && ({inner}))"
                guards.append(f"({inner})")
            if condition is not None:
                plain = plain.rstrip()
                assert plain.endswith("if"), plain
                plain = plain[:-2]
            head = self.source[arm.start_byte:pattern.start_byte].decode() + plain
            if guards:
                head += " if " + " && ".join(guards)
            out.append(head + self.source[pattern.end_byte:value.start_byte].decode())
            out.append(self.rewrite(value))
            out.append(self.source[value.end_byte:arm.end_byte].decode())
            at = arm.end_byte
        out.append(self.source[at:node.end_byte].decode())
        return "".join(out)

    def fields(self, node):
        body = node.child_by_field_name("body")
        base = next((c for c in body.named_children if c.type == "base_field_initializer"), None)
        if base is None:
            return self.children(node)
        rest = self.text(base)[2:]
        out, at = [], node.start_byte
        for child in body.named_children:
            out.append(self.source[at:child.start_byte].decode())
            at = child.end_byte
            if child.type not in ("field_initializer", "shorthand_field_initializer"):
                out.append(self.rewrite(child))
                continue
            if child.type == "field_initializer":
                field = self.text(child.child_by_field_name("field"))
                plain = self.rewrite(child.child_by_field_name("value"))
            else:
                field = plain = self.text(child)
            number = self.fault(child, f"delete field {field}")
            options = [(number, f"({rest}).{field}")] if number else []
            out.append(f"{field}: {self.choose(options, plain)}")
        out.append(self.source[at:node.end_byte].decode())
        return "".join(out)


def sources(parts):
    found = {}
    for part in parts:
        for pattern in PARTS[part][0]:
            for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
                path = os.path.relpath(path, ROOT)
                if not re.search(r"/tests(/|\.rs$)", path):
                    found.setdefault(path, []).append(part)
    return found


def run_cargo(arguments):
    environment = {
        **os.environ, "CARGO_TARGET_DIR": os.path.join(WORK, "build"), "RUSTFLAGS": "--cap-lints warn",
        "CARGO_INCREMENTAL": "1",
    }
    done = subprocess.run(
        ["cargo", *arguments, "--profile", "mutants", "--message-format=json"],
        cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, messages


def culprits(messages):
    """Faults in which the compiler found errors."""
    bad, lost = set(), []
    for message in messages:
        if message.get("reason") != "compiler-message" or message["message"]["level"] != "error":
            continue
        found = set()
        for span in message["message"]["spans"]:
            if not span["is_primary"]:
                continue
            # An error in a macro of the standard library is where it is called.
            while span["expansion"] and not os.path.exists(os.path.join(TREE, span["file_name"])):
                span = span["expansion"]["span"]
            path = os.path.join(TREE, span["file_name"])
            if not os.path.exists(path):
                continue
            text = open(path, "rb").read()[:max(span["byte_end"], span["byte_start"])].decode(errors="ignore")
            open_marks = []
            for mark in re.finditer(r"/\*([me])(\d+)\*/", text):
                if mark[1] == "m":
                    open_marks.append(int(mark[2]))
                elif open_marks:
                    open_marks.pop()
            if open_marks:
                found.add(open_marks[-1])
            else:
                # An error behind a choice: its operands.
                near = re.findall(r"__mutant::on\((\d+)\)", text[-400:])
                found.update(map(int, near[-1:]))
        if found:
            bad |= found
        elif message["message"]["spans"]:
            lost.append(message["message"]["rendered"])
    return bad, lost


def targets(parts):
    return sorted({test[:2] for part in parts for test in PARTS[part][1]})


def build(parts):
    os.makedirs(TREE, exist_ok=True)
    subprocess.run(
        ["rsync", "-a", "--delete", "--exclude=/target", "--exclude=/.git", ROOT + "/", TREE + "/"], check=True
    )
    mutants, bad = Mutants(), set()
    files = sources(parts)
    # Faults that did not compile the last time are left out while their file is the same.
    known_path = os.path.join(WORK, "uncompilable.json")
    known = json.load(open(known_path, encoding="utf-8")) if os.path.exists(known_path) else {}
    digests = {path: hashlib.sha256(open(os.path.join(ROOT, path), "rb").read()).hexdigest() for path in files}
    for path in files:
        for _, at, what in known.get(path, {}).get(digests[path], []):
            bad.add(mutants.id((path, at, what), f"{path}: {what}"))
    crates = sorted({path.split("/src/")[0] for path in files})
    packages = sorted({package for package, _ in targets(parts)})
    tests = [f"--package={package}" for package in packages]
    names = sorted({name for _, name in targets(parts)})
    tests += ["--lib"] if "lib" in names else []
    tests += [f"--test={name}" for name in names if name != "lib"]
    for attempt in range(60):
        for path in files:
            source = open(os.path.join(ROOT, path), "rb").read()
            text = Rewriter(path, source, mutants, bad).rewrite(PARSER.parse(source).root_node)
            write(os.path.join(TREE, path), text)
        for crate in crates:
            root = os.path.join(crate, "src", "lib.rs")
            text = open(os.path.join(TREE if root in files else ROOT, root), encoding="utf-8").read()
            write(os.path.join(TREE, root), text.split("\n#[allow(missing_docs, dead_code)]\npub mod __mutant")[0]
                  + RUNTIME)
        # The crates from the lowest on: errors of one hide those above it.
        done, messages = run_cargo(["test", "--no-run", *tests])
        for path in files:
            known[path] = {digests[path]: [key for key, number in mutants.ids.items()
                                           if key[0] == path and number in bad]}
        write(known_path, json.dumps(known))
        if done.returncode == 0:
            break
        new, lost = culprits(messages)
        print(f"  build {attempt + 1}: {len(new)} faults do not compile", flush=True)
        if not new - bad:
            sys.exit("\n".join(lost[:3]) + done.stderr[-3000:])
        bad |= new
    binaries = {}
    for message in messages:
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            crate = os.path.basename(os.path.dirname(message["manifest_path"]))
            name = "xact" if crate == "xact" else f"xact-{crate}"
            target = message["target"]
            label = "lib" if "lib" in target["kind"] else target["name"]
            binaries[(name, label)] = (message["executable"], os.path.dirname(message["manifest_path"]))
    return mutants, bad, files, binaries


def write(path, text):
    """Writes a file if its text is new, so that cargo builds only what has changed."""
    try:
        if open(path, encoding="utf-8").read() == text:
            return
    except FileNotFoundError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def run(command, folder, variables, limit):
    """Whether the command succeeds in time; a hang is a failure."""
    scratch = os.path.join(WORK, "tmp", str(os.getpid()), f"{random.random()}")
    os.makedirs(scratch)
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **variables, "TMPDIR": scratch}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        good = process.wait(timeout=limit) == 0
    except subprocess.TimeoutExpired:
        good = False
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for line in open("/proc/mounts", encoding="utf-8"):
        mount = line.split()[1]
        if mount.startswith(scratch):
            subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(scratch, ignore_errors=True)
    return good


def reached_by(binary, folder, filter_):
    """For each test, the faults that it reaches, and its seconds."""
    listed = subprocess.run([binary, "--list", "--format=terse", *([filter_] if filter_ else [])], cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    names = [line[:-len(": test")] for line in listed.splitlines() if line.endswith(": test")]

    def one(name):
        trace = os.path.join(WORK, f"trace-{os.getpid()}-{random.random()}")
        start = time.time()
        if not run([binary, "--exact", name], folder, {"MUTANT_TRACE": trace}, 300):
            print(f"  {name} fails without a fault", flush=True)
            return name, None, 0
        try:
            numbers = {int(line) for line in open(trace, encoding="utf-8") if line.strip()}
            os.unlink(trace)
        except FileNotFoundError:
            numbers = set()
        return name, numbers, time.time() - start

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(one, names))


def main():
    arguments = sys.argv[1:]
    sitting, missed_file = (1, 1), None
    if "--sitting" in arguments:
        at = arguments.index("--sitting")
        sitting = tuple(map(int, arguments[at + 1].split("/")))
        del arguments[at:at + 2]
    if "--missed" in arguments:
        at = arguments.index("--missed")
        missed_file = arguments[at + 1]
        del arguments[at:at + 2]
    budget = 1 << 30
    only_builds = "--build" in arguments
    if only_builds:
        arguments.remove("--build")
    if "--seconds" in arguments:
        at = arguments.index("--seconds")
        budget = int(arguments[at + 1])
        del arguments[at:at + 2]
    if not arguments or not set(arguments) <= PARTS.keys():
        sys.exit(f"usage: scripts/mutants_at_once.py PART... [--sitting K/N]; the parts: {' '.join(PARTS)}")
    patterns = []
    if os.path.exists(EQUIVALENT):
        lines = open(EQUIVALENT, encoding="utf-8").read().splitlines()
        patterns = [re.compile(line) for line in lines if line and not line.startswith("#")]
    mutants, bad, files, binaries = build(arguments)
    print(f"{len(mutants.all) - len(bad)} faults, and {len(bad)} that do not compile", flush=True)
    if only_builds:
        return
    cache, missed = {}, []
    for part in arguments:
        chosen = [n for n, text in mutants.all.items() if n not in bad and part in files[text.split(":")[0]]]
        left_out = [n for n in chosen if any(p.search(mutants.all[n]) for p in patterns)]
        chosen = [n for n in chosen if n not in left_out]
        random.Random(7).shuffle(chosen)
        chosen = chosen[sitting[0] - 1::sitting[1]]
        reach = defaultdict(list)
        for package, target, filter_ in PARTS[part][1]:
            binary, folder = binaries[(package, target)]
            if (binary, filter_) not in cache:
                cache[(binary, filter_)] = reached_by(binary, folder, filter_)
            for name, numbers, seconds in cache[(binary, filter_)]:
                for number in numbers or ():
                    reach[number].append((seconds, binary, folder, name))

        def is_caught(number):
            tests = sorted(reach[number])
            groups = defaultdict(list)
            for seconds, binary, folder, name in tests:
                groups[(binary, folder)].append((seconds, name))
            # The fastest tests come first, a few at a time.
            for (binary, folder), named in groups.items():
                for at in range(0, len(named), 12):
                    some = named[at:at + 12]
                    limit = 20 + 10 * sum(seconds for seconds, _ in some)
                    names = [name for _, name in some]
                    if not run([binary, "--exact", *names], folder, {"MUTANT": str(number)}, limit):
                        return True
            return False

        end = time.time() + budget

        def judge(number):
            if time.time() > end:
                return None
            good = is_caught(number)
            if not good:
                missed.append(f"{'MISSED' if reach[number] else 'UNREACHED'} {mutants.all[number]}")
                print(f"  {missed[-1]}", flush=True)
            return good

        with ThreadPoolExecutor(JOBS) as pool:
            caught = [result for result in pool.map(judge, chosen) if result is not None]
        share = 100 * sum(caught) / max(1, len(caught))
        print(f"{part} {sitting[0]}/{sitting[1]}: {sum(caught)} of {len(caught)} caught ({share:.1f} %), "
              f"{len(left_out)} left out as equivalent, {len(chosen) - len(caught)} not run", flush=True)
    if missed_file:
        with open(missed_file, "w", encoding="utf-8") as file:
            file.write("\n".join(missed) + "\n")


if __name__ == "__main__":
    main()
