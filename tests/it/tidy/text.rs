//! Sizes, forgotten fixtures, and words that do not belong where they stand.

use super::source::{Source, has_word, is_word, repository};

/// A file over this many lines is to be divided; the tests module at its end does not count.
const LINES_MAX: usize = 600;
/// Files over this many lines are named besides, when another one is too long.
const LINES_LONG: usize = 400;

/// On the line of a sleep in a test, or in the line above it: why nothing else can be waited for.
const SLEEP_REASON: &str = "// sleeps because ";

/// Fixtures that a tool reads and no test names.
const FIXTURES_OF_TOOLS: &[&str] = &[
    "fixtures/cli/",
    // Checked here, by `rows` and `mutations`.
    "fixtures/rows.txt",
    "fixtures/field_reports.txt",
    "fixtures/mutations.txt",
];

/// Where no machine's paths are looked for, since they are planted there.
const OWN_FILES: &str = "tests/it/tidy";

/// What recorded lines have in the place of the home they were recorded in.
const RECORDED_HOME: &str = "/home/user/";

/// The only index that dependencies come from, as Cargo names it whatever mirror is configured.
const CRATES_INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn files_are_short_enough_to_be_read() {
    let found = too_long(&repository());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_fixture_is_named_by_a_test_or_a_source() {
    assert_eq!(unused_fixtures(&repository()), Vec::<String>::new());
}

#[test]
fn library_code_neither_panics_nor_is_unfinished() {
    assert_eq!(misplaced_words(&repository()), Vec::<String>::new());
}

#[test]
fn tests_wait_for_conditions_and_do_not_sleep() {
    assert_eq!(sleeps(&repository()), Vec::<String>::new());
}

#[test]
fn no_file_names_a_machine_or_a_package_registry() {
    assert_eq!(places(&repository()), Vec::<String>::new());
}

fn too_long(sources: &[Source]) -> Vec<String> {
    let mut sizes: Vec<(usize, &str)> = sources
        .iter()
        .filter(|it| it.is_rust())
        .map(|it| (it.lines_before_tests(), it.path.as_str()))
        .filter(|(lines, _)| *lines > LINES_LONG)
        .collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    if sizes.first().is_none_or(|(lines, _)| *lines <= LINES_MAX) {
        return Vec::new();
    }
    let line = |(lines, path): &(usize, &str)| match *lines > LINES_MAX {
        true => format!("{path}: {lines} lines, at most {LINES_MAX} are allowed"),
        false => format!("{path}: {lines} lines, still allowed"),
    };
    sizes.iter().map(line).collect()
}

fn unused_fixtures(sources: &[Source]) -> Vec<String> {
    let named = |path: &str| {
        let (directory, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
        let quoted = format!("\"{stem}\"");
        let whole_directory = format!("{directory}\"");
        sources
            .iter()
            .filter(|it| it.is_rust() && !it.path.starts_with(OWN_FILES))
            .any(|it| {
                has_word(&it.text, file)
                    || it.text.contains(&quoted)
                    || it.text.contains(&whole_directory)
            })
    };
    sources
        .iter()
        .map(|it| it.path.as_str())
        .filter(|it| it.starts_with("fixtures/"))
        .filter(|it| {
            !FIXTURES_OF_TOOLS
                .iter()
                .any(|of_tool| it.starts_with(of_tool))
        })
        .filter(|it| !named(it))
        .map(|it| format!("{it}: no Rust file names it"))
        .collect()
}

fn misplaced_words(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|it| it.is_rust()) {
        let mut report = |number: usize, word: &str| {
            found.push(format!("{}:{number}: {word}", source.path));
        };
        let library = source.library_lines();
        for (number, line) in &library {
            if source.path.starts_with("src/") {
                if line.contains(".unwrap()") {
                    report(*number, "unwrap");
                }
                if expects(line) {
                    report(*number, "expect");
                }
            }
            let full = source.text.lines().nth(number - 1).unwrap_or_default();
            if has_word(full, "FIXME") {
                report(*number, "FIXME");
            }
        }
        for (number, line) in library.iter().chain(&source.test_lines()) {
            let unfinished = ["todo!", "unimplemented!", "#[ignore"];
            let unfinished = unfinished.iter().filter(|it| line.contains(**it));
            unfinished.for_each(|it| report(*number, it));
        }
    }
    found
}

/// True for an `expect` with a message, whose text is no code; methods of that name take something.
fn expects(line: &str) -> bool {
    let line = line.trim_end();
    line.contains(".expect()") || line.contains(".expect(&") || line.ends_with(".expect(")
}

fn sleeps(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|it| it.is_rust()) {
        let lines: Vec<&str> = source.text.lines().collect();
        let has_reason = |at: usize| {
            let reason = lines.get(at).and_then(|it| it.split_once(SLEEP_REASON));
            reason.is_some_and(|(_, reason)| !reason.trim().is_empty())
        };
        for (number, line) in source.test_lines() {
            let above = number.checked_sub(2).is_some_and(has_reason);
            let is_sleep = has_word(&line, "sleep") && line.contains("sleep(");
            if is_sleep && !has_reason(number - 1) && !above {
                found.push(format!(
                    "{}:{number}: a sleep without `{SLEEP_REASON}..`",
                    source.path
                ));
            }
        }
    }
    found
}

/// The folders that hold somebody's checkout: a path below one of them was copied from a machine.
const MACHINE_ROOTS: [&str; 3] = ["work", "root", "home"];

fn places(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|it| !it.path.starts_with(OWN_FILES)) {
        for (at, line) in source.text.lines().enumerate() {
            let mut report = |what: &str| {
                found.push(format!("{}:{}: {what}", source.path, at + 1));
            };
            for root in MACHINE_ROOTS.map(|it| format!("/{it}/")) {
                if begins_a_path(line, &root) {
                    report(&root);
                }
            }
            // Tests make up paths below it; an explanation that names one was written on a machine.
            let is_prose = source.path.ends_with(".md")
                || source.is_rust() && line.trim_start().starts_with("//");
            if is_prose && line.contains("/tmp/") {
                report("/tmp/");
            }
            let other_index = line.contains("registry+") && !line.contains(CRATES_INDEX);
            if other_index || source.path == "Cargo.lock" && line.contains("sparse+") {
                report("another index than that of crates.io");
            }
            if line.contains("\"resolved\": \"http") || line.contains("registry=http") {
                report("the address of a package registry");
            }
        }
    }
    found
}

/// True when a path in the line starts with this root; recordings stand in a made-up home.
fn begins_a_path(line: &str, root: &str) -> bool {
    line.match_indices(root).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let is_inside = before.is_some_and(|it| is_word(it) || ".-~*}".contains(it));
        !is_inside && !line[start..].starts_with(RECORDED_HOME)
    })
}

/// A planted violation, and whether it is one.
fn check(rule: fn(&[Source]) -> Vec<String>, path: &str, text: &str, is_found: bool) {
    let found = rule(&[Source::new(path, text)]);
    assert_eq!(!found.is_empty(), is_found, "{path}: {text}: {found:?}");
}

#[test]
fn long_files_are_found() {
    let long = "x\n".repeat(LINES_MAX + 1);
    check(too_long, "src/x.rs", &long, true);
    check(too_long, "tests/it/x.rs", &long, true);
    check(too_long, "src/x.rs", &"x\n".repeat(LINES_MAX), false);
    check(too_long, "README.md", &long, false);
    let tests_at_the_end = format!("x\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
    check(too_long, "src/x.rs", &tests_at_the_end, false);
    let sources = [
        Source::new("src/rather.rs", &"x\n".repeat(LINES_LONG + 1)),
        Source::new("src/too.rs", &long),
        Source::new("src/short.rs", "x\n"),
    ];
    let expected = [
        "src/too.rs: 601 lines, at most 600 are allowed",
        "src/rather.rs: 401 lines, still allowed",
    ];
    assert_eq!(too_long(&sources), expected);
}

#[test]
fn unnamed_fixtures_are_found() {
    let path = "fixtures/lines/1.0/plain.jsonl";
    for (namer, text, is_found) in [
        ("src/x.rs", "", true),
        ("src/x.rs", "// a plain line", true),
        ("src/x.rs", "read(\"explain.jsonl\")", true),
        ("README.md", "plain.jsonl", true),
        ("tests/it/tidy/x.rs", "read(\"plain.jsonl\")", true),
        (
            "src/x.rs",
            "include_str!(\"../fixtures/lines/1.0/plain.jsonl\")",
            false,
        ),
        ("tests/it/x.rs", "lines(\"plain\")", false),
        ("tests/it/x.rs", "all(\"fixtures/lines/1.0\")", false),
    ] {
        let sources = [Source::new(path, "{}"), Source::new(namer, text)];
        let found = unused_fixtures(&sources);
        assert_eq!(!found.is_empty(), is_found, "{namer}: {text}: {found:?}");
    }
    check(unused_fixtures, "fixtures/cli/package.json", "{}", false);
}

#[test]
fn misplaced_words_are_found() {
    let in_tests = |it: &str| format!("#[cfg(test)]\nmod tests {{\n    {it}\n}}\n");
    for (path, text, is_found) in [
        ("src/x.rs", "a.unwrap();", true),
        ("src/x.rs", "a\n    .expect(\"b\");", true),
        ("src/x.rs", "a.expect(\n    \"b\",\n);", true),
        ("src/x.rs", "a.expect(&format!(\"b\"));", true),
        ("src/x.rs", "self.transcript.expect(uuid);", false),
        ("src/x.rs", "a.unwrap_or(b);\n#[expect(lint)]", false),
        ("src/x.rs", "/// a.unwrap();\nlet b = \".unwrap()\";", false),
        ("src/x/tests.rs", "a.unwrap();", false),
        ("src/x.rs", &in_tests("a.unwrap();"), false),
        ("examples/x.rs", "a.unwrap();", false),
        ("src/x.rs", "todo!()", true),
        ("src/x/tests.rs", "unimplemented!()", true),
        ("src/x.rs", &in_tests("#[ignore = \"slow\"]"), true),
        ("tests/it/x.rs", "#[ignore]", true),
        ("src/x.rs", "// FIXME: later", true),
        ("examples/x.rs", "// FIXME: later", true),
        ("tests/it/x.rs", "// FIXME: today's wrong answer", false),
        (
            "src/x.rs",
            &in_tests("// FIXME: today's wrong answer"),
            false,
        ),
    ] {
        check(misplaced_words, path, text, is_found);
    }
}

#[test]
fn sleeps_are_found() {
    let reason = format!("{SLEEP_REASON}the kernel tells nobody");
    for (path, text, is_found) in [
        ("tests/it/x.rs", "tokio::time::sleep(a).await;", true),
        ("src/x/tests.rs", "thread::sleep(a);", true),
        ("tests/it/x.rs", &format!("sleep(a); {reason}"), false),
        ("tests/it/x.rs", &format!("{reason}\nsleep(a);"), false),
        ("tests/it/x.rs", &format!("{SLEEP_REASON}\nsleep(a);"), true),
        ("tests/it/x.rs", &format!("{reason}\n\nsleep(a);"), true),
        ("tests/it/x.rs", "// sleep(a)\nrun(\"sleep(a)\")", false),
        ("src/x.rs", "sleep(a)", false),
    ] {
        check(sleeps, path, text, is_found);
    }
}

#[test]
fn places_are_found() {
    let [first, second, _] = MACHINE_ROOTS;
    let (checkout, home) = (
        format!("see /{first}/x"),
        format!("let a = \"/{second}/x\";"),
    );
    for (path, text, is_found) in [
        ("README.md", checkout.as_str(), true),
        ("src/x.rs", &home, true),
        ("fixtures/lines/x.jsonl", "{\"cwd\":\"/home/x\"}", true),
        (
            "fixtures/lines/x.jsonl",
            "{\"cwd\":\"/home/user/work/x\"}",
            false,
        ),
        ("src/x.rs", "a(\"fixtures/work/x\")", false),
        ("src/x.rs", "    /// as in /tmp/x", true),
        ("src/manual/x.md", "as in /tmp/x", true),
        ("src/x.rs", "let a = \"/tmp/x\";", false),
        (
            "fixtures/cli/package-lock.json",
            "  \"resolved\": \"https://x\"",
            true,
        ),
        ("fixtures/cli/.npmrc", "registry=https://x", true),
        (
            "fixtures/cli/.npmrc",
            "omit-lockfile-registry-resolved=true",
            false,
        ),
        ("Cargo.lock", "source = \"registry+https://x/index\"", true),
        ("Cargo.lock", "source = \"sparse+https://x/index\"", true),
        ("Cargo.lock", &format!("source = \"{CRATES_INDEX}\""), false),
    ] {
        check(places, path, text, is_found);
    }
}
