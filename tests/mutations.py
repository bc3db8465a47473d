#!/usr/bin/env python3
"""Plants each mutation of fixtures/mutations.txt, and fails when its named test stays green.

    tests/mutations.py [NAME…]     all of them without a name: one build each, 10 to 40 s

Works in the checkout and its target directory. A changed file is put back whatever happens; after
a SIGKILL the tidy test of the list tells which one is left.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "fixtures/mutations.txt"
CARGO = ["cargo", "test", "--locked", "--all-features", "--quiet"]
BUILD_SECONDS_MAX = 900
TEST_SECONDS_MAX = 180


class Mutation:
    def __init__(self, block):
        name, *lines = block.strip("\n").split("\n")
        self.name = name
        head = dict(it.split(": ", 1) for it in lines[:3])
        self.file = ROOT / head["file"]
        *self.target, self.test = head["test"].split(" ")
        lines = lines[3:]
        self.old = "".join(f"{it[1:]}\n" for it in lines if it[0] in " -")
        self.new = "".join(f"{it[1:]}\n" for it in lines if it[0] in " +")


def cargo(target, arguments, seconds):
    """Runs a cargo test; its whole process group is ended when it takes too long."""
    process = subprocess.Popen(
        [*CARGO, *target, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def without_mutation(mutations):
    """A test that is red anyway proves nothing: each must be there and green first."""
    for target in sorted({tuple(it.target) for it in mutations}):
        tests = sorted({it.test for it in mutations if tuple(it.target) == target})
        code, output = cargo(target, ["--", "--exact", *tests], BUILD_SECONDS_MAX)
        if code != 0 or f"{len(tests)} passed" not in output:
            sys.exit(f"{output}\nthe tests of {' '.join(target)} are not all there and green")


def verdict(mutation):
    code, output = cargo(mutation.target, ["--no-run"], BUILD_SECONDS_MAX)
    if code != 0:
        return f"DOES NOT BUILD {mutation.name}\n{output}"
    code, output = cargo(mutation.target, ["--", "--exact", mutation.test], TEST_SECONDS_MAX)
    if code is None:
        return f"HANGS {mutation.name} in {mutation.test}"
    if code != 0 and "0 passed; 1 failed" in output:
        return f"caught {mutation.name} by {mutation.test}"
    return f"SURVIVED {mutation.name}"


def main():
    blocks = re.split(r"^== ", LIST.read_text(), flags=re.MULTILINE)[1:]
    mutations = [Mutation(it) for it in blocks]
    wanted = sys.argv[1:]
    unknown = set(wanted) - {it.name for it in mutations}
    if unknown:
        sys.exit(f"there is no mutation {', '.join(sorted(unknown))}")
    mutations = [it for it in mutations if not wanted or it.name in wanted]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))

    without_mutation(mutations)
    missed = 0
    for mutation in mutations:
        original = mutation.file.read_text()
        if original.count(mutation.old) != 1:
            sys.exit(f"{mutation.name}: the old text does not stand exactly once in its file")
        try:
            mutation.file.write_text(original.replace(mutation.old, mutation.new))
            result = verdict(mutation)
        finally:
            mutation.file.write_text(original)
        print(result, flush=True)
        missed += not result.startswith("caught ")
    print(f"{len(mutations) - missed} of {len(mutations)} caught")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
