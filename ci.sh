#!/usr/bin/env bash
# Checks everything: installs the pinned CLIs, fetches the crates, and then works offline. Prints
# each command, and stops at the first failure. Needs cargo, npm, python3 and a C compiler.
#
# What cannot be checked here (a tool that is not installed, a directory that is still empty) is
# said where it happens and again at the end.
set -Eeuo pipefail
cd "$(dirname "$0")"

# All packages of Cargo.lock, our own included. A change here is a dependency that somebody chose.
packages_expected=158

# What the licenses of the dependencies may be; for cargo-deny.
licenses_allowed='["Apache-2.0", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib"]'

# How long the fuzzer runs; its findings need hours, this only shows that it still can.
fuzz_seconds=10

# Coverage for the fuzzer from passes of the stable compiler: no nightly, no cargo-fuzz.
fuzz_flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
fuzz_flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
fuzz_flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"

# An example that takes longer than this hangs.
example_seconds_max=120

current_step=""
step_started=0
unchecked=()

step() {
    end_step
    current_step=$1
    step_started=$SECONDS
    printf '\n== %s\n' "$current_step"
}

end_step() {
    if [[ -n $current_step ]]; then
        printf '== %s: ok, %d s\n' "$current_step" $((SECONDS - step_started))
    fi
}

run() {
    printf '+ %s\n' "$*"
    "$@"
}

not_checked() {
    printf '!! NOT CHECKED: %s\n' "$1"
    unchecked+=("$1")
}

trap 'printf "\n!! FAILED: %s\n" "$current_step" >&2' ERR

cli_path() {
    printf '%s/fixtures/cli/node_modules/cli-%s/claude' "$PWD" "$1"
}

# One name a line: the features of the crate but `default`.
features() {
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
package, = json.load(sys.stdin)["packages"]
print("\n".join(sorted(set(package["features"]) - {"default"})))'
}

# The names of the targets in a directory: each file, and each directory with a main.rs.
targets_in() {
    local path
    for path in "$1"/*.rs "$1"/*/main.rs; do
        [[ -e $path ]] || continue
        path=${path#"$1"/}
        path=${path%/main.rs}
        printf '%s\n' "${path%.rs}"
    done
}

step "toolchain"
run cargo --version --verbose
toolchain=$(rustc --version | cut -d' ' -f2)
minimum=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
if [[ $toolchain != "$minimum" && $toolchain != "$minimum".* ]]; then
    not_checked "rust-version $minimum: this is $toolchain"
fi

step "CLIs"
installed=fixtures/cli/node_modules/.package-lock.json
if [[ ! -e $installed || fixtures/cli/package-lock.json -nt $installed ]]; then
    run npm ci --prefix fixtures/cli --ignore-scripts --no-audit --no-fund
    touch "$installed"
else
    echo "installed from this lock already"
fi
ABIDE_CLI_2_1_316=$(cli_path 2-1-316)
ABIDE_CLI_2_1_332=$(cli_path 2-1-332)
export ABIDE_CLI_2_1_316 ABIDE_CLI_2_1_332 ABIDE_REQUIRE_REAL_CLI=1 INSTA_UPDATE=no

step "crates"
run cargo fetch --locked
run cargo fetch --locked --manifest-path fuzz/Cargo.toml
export CARGO_NET_OFFLINE=true
packages=$(grep -c '^name = ' Cargo.lock)
echo "$packages packages in Cargo.lock, $packages_expected expected"
[[ $packages == "$packages_expected" ]]

step "format"
run cargo fmt --check

step "lints"
# Tests always see the features of the self dev-dependency, so each feature alone is linted as a
# library only.
run cargo clippy --locked --all-targets -- -D warnings
run cargo clippy --locked --all-targets --no-default-features -- -D warnings
run cargo clippy --locked --all-targets --all-features -- -D warnings
run cargo clippy --locked --lib -- -D warnings
run cargo clippy --locked --lib --no-default-features -- -D warnings
features_alone=$(features)
for feature in $features_alone; do
    run cargo clippy --locked --lib --no-default-features --features "$feature" -- -D warnings
done

step "documentation"
run env RUSTDOCFLAGS=-Dwarnings cargo doc --locked --no-deps --all-features

step "tests"
run cargo test --locked --all-features --lib --bins --tests

step "documentation tests"
run cargo test --locked --all-features --doc

step "fuzzing, for seconds"
if c++ --version >/dev/null 2>&1; then
    host=$(rustc --version --verbose | sed -n 's/^host: //p')
    run cargo fmt --check --manifest-path fuzz/Cargo.toml
    run env RUSTFLAGS="$fuzz_flags" cargo build --locked --release --target "$host" \
        --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
    mkdir -p target/fuzz/corpus
    # What it finds is written to the first directory; the fixtures are only read.
    run "target/fuzz/$host/release/cli_output" -max_total_time="$fuzz_seconds" -print_final_stats=1 \
        -verbosity=0 -artifact_prefix=target/fuzz/ target/fuzz/corpus fixtures/segment/2.1.316 \
        fixtures/lines/2.1.316
else
    not_checked "fuzzing: there is no C++ compiler for libFuzzer"
fi

step "examples"
examples=$(targets_in examples)
for example in $examples; do
    run timeout "$example_seconds_max" \
        cargo run --locked --all-features --example "$example" </dev/null
done
[[ -n $examples ]] || not_checked "examples: there are none"

step "benches, as smoke"
# In the tests' profile, so that nothing is built twice; the figures mean nothing.
benches=$(targets_in benches)
for bench in $benches; do
    run cargo bench --locked --all-features --profile dev --bench "$bench" -- --quick
done
[[ -n $benches ]] || not_checked "benches: there are none"

step "package"
if [[ -e README.md ]]; then
    run cargo package --locked --allow-dirty
else
    not_checked "package: there is no README.md"
fi

step "dependencies"
if cargo deny --version >/dev/null 2>&1; then
    mkdir -p target
    printf '[licenses]\nallow = %s\n' "$licenses_allowed" >target/deny.toml
    run cargo deny --all-features check --config target/deny.toml bans licenses sources
else
    not_checked "bans, licenses, sources: cargo-deny is not installed"
fi

step "semantic versioning"
release=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)
if ! cargo semver-checks --version >/dev/null 2>&1; then
    not_checked "semantic versioning: cargo-semver-checks is not installed"
elif [[ -z $release ]]; then
    not_checked "semantic versioning: there is no release to compare with"
else
    run cargo semver-checks --baseline-rev "$release"
fi

end_step
printf '\n== all steps passed in %d s\n' "$SECONDS"
for what in ${unchecked[@]+"${unchecked[@]}"}; do
    printf '!! NOT CHECKED: %s\n' "$what"
done
