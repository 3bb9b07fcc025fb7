#!/usr/bin/env python3
"""Runs the code blocks of a page in the order in which they stand, in the current folder.

    doc_blocks.py PAGE          what the commands print has to be what the page shows
    doc_blocks.py --fill PAGE   writes into the page what they print, where that differs

Blocks, by the first word behind the fence:
- sh: commands, run by one shell for the whole page. A command that fails ends the run.
- console: lines with '$ ' are commands ('> ' continues one), the others are what they print.
  They may fail.
- any other word, and a file's name behind it: the block is written to that file.
- text: a picture, which is not run.
Any other block is an error.

Numbers with their units, UUIDs and the width of columns differ from run to run and are not
compared. The current folder shows as /srv.
"""

import os
import pathlib
import re
import subprocess
import sys

END = "--- end of command"


class Shell:
    """One bash that runs command after command."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def run(self, command):
        """Runs a command; returns the lines that it printed and its exit status."""
        self.process.stdin.write(f"{command}\nprintf '\\n{END} %s\\n' $?\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith(END):
                text = "".join(lines).removesuffix("\n").replace(os.getcwd(), "/srv")
                return text.splitlines(), int(line.split()[-1])
            lines.append(line)
        sys.exit(f"the shell ended at: {command}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def blocks(lines):
    """(first line, one behind the last, words of the fence) of each block's inside."""
    start, words = None, []
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start, words = number + 1, line[3:].split()
        else:
            yield start, number, words
            start = None


def masked(lines):
    """Lines without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "#", "\n".join(lines))
    text = re.sub(r"\d[\d.,:]*", "#", text)
    text = re.sub(r"# (?:bytes|[KMGT]iB|ms|[smhd])\b", "#", text)
    return [" ".join(re.sub(r"-{2,}", "-", line).split()) for line in text.splitlines()]


def commands(lines):
    """The commands of a block of a shell, each as one text."""
    command = []
    for line in lines:
        command.append(line)
        text = "\n".join(command)
        if not line.endswith("\\") and subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode == 0:
            if text.strip():
                yield text
            command = []


def transcript(shell, lines):
    """A console block as it is when its commands are run."""
    result, command = [], []

    def finish():
        if command:
            result.extend(shell.run("\n".join(command))[0])
            command.clear()

    for line in lines:
        if line.startswith("$ "):
            finish()
            command.append(line[2:])
            result.append(line)
        elif line.startswith("> ") and command:
            command.append(line[2:])
            result.append(line)
    finish()
    return result


def run_page(page, fill):
    lines = page.read_text().splitlines()
    shell = Shell()
    filled, wrong, done = [], [], 0
    for start, end, words in blocks(lines):
        inside = lines[start:end]
        filled += lines[done:start]
        if words == ["sh"]:
            for command in commands(inside):
                printed, status = shell.run(command)
                if status:
                    sys.exit(f"{page}:{start + 1}: exit status {status} of: {command}\n" + "\n".join(printed))
        elif words == ["console"]:
            found = transcript(shell, inside)
            if masked(found) != masked(inside):
                if not fill:
                    shown, printed = "\n".join(inside), "\n".join(found)
                    wrong.append(f"{page}:{start + 1}: the page has\n{shown}\nand the run\n{printed}")
                inside = found
        elif len(words) == 2:
            pathlib.Path(words[1]).write_text("\n".join(inside) + "\n")
        elif words != ["text"]:
            wrong.append(f"{page}:{start}: a block that cannot be run: {words}")
        filled += inside
        done = end
    shell.close()
    if fill:
        page.write_text("\n".join(filled + lines[done:]) + "\n")
    return wrong


def main():
    fill = sys.argv[1] == "--fill"
    wrong = run_page(pathlib.Path(sys.argv[-1]), fill)
    if wrong:
        sys.exit("\n".join(wrong))


main()
