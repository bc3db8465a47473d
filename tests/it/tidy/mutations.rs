//! The planted mutations still fit: what each one changes stands once in its file, and the test
//! that must turn red is there. `tests/mutations.py` plants them.

use std::collections::{BTreeMap, BTreeSet};

use super::guarantees::GUARANTEES;
use super::named::tests_by_name;
use super::source::{Source, has_word, repository};

const LIST: &str = "fixtures/mutations.txt";
const MUTATIONS_MIN: usize = 15;

/// Design.md 9: no mutation of the list has lost what it changes or the test that catches it, and
/// each guarantee is attacked. A mutation that was left in the code after a killed run is found
/// here too.
#[test]
fn every_mutation_can_be_planted() {
    let found = problems(&repository(), MUTATIONS_MIN, GUARANTEES);
    assert_eq!(found, [] as [String; 0]);
}

/// One entry of the list.
#[derive(Debug, PartialEq, Eq)]
struct Mutation {
    attacks: String,
    file: String,
    /// Which test binary.
    target: String,
    /// The name of the test with its modules.
    test: String,
    old: String,
    new: String,
}

fn problems(sources: &[Source], least: usize, guarantees: u32) -> Vec<String> {
    let Some(list) = sources.iter().find(|it| it.path == LIST) else {
        return vec![format!("{LIST} is missing")];
    };
    let tests = tests_by_name(sources);
    let mut names = BTreeSet::new();
    let mut problems = Vec::new();
    let mut attacked = String::new();
    for block in list.text.split("\n== ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap_or((block, ""));
        if !names.insert(name) {
            problems.push(format!("{name} is there twice"));
        }
        let found = match read(rest) {
            Some(mutation) => {
                attacked.push_str(&mutation.attacks);
                attacked.push('\n');
                wrong_with(&mutation, sources, &tests)
            }
            None => vec!["it cannot be read".to_owned()],
        };
        problems.extend(found.into_iter().map(|it| format!("{name}: {it}")));
    }
    if names.len() < least {
        problems.push(format!("{} mutations, not {least}", names.len()));
    }
    for number in 1..=guarantees {
        if !has_word(&attacked, &format!("G{number}")) {
            problems.push(format!("no mutation attacks G{number}"));
        }
    }
    problems
}

/// Reads what stands below the name; `None` when it has another form.
fn read(text: &str) -> Option<Mutation> {
    let mut lines = text.trim_end_matches('\n').lines();
    let mut head = |key: &str| Some(lines.next()?.strip_prefix(key)?.to_owned());
    let attacks = head("attacks: ")?;
    let file = head("file: ")?;
    let test = head("test: ")?;
    let (target, test) = test.rsplit_once(' ')?;
    let (mut old, mut new) = (String::new(), String::new());
    for line in lines {
        let (mark, text) = line.split_at_checked(1)?;
        let text = format!("{text}\n");
        match mark {
            " " => {
                old.push_str(&text);
                new.push_str(&text);
            }
            "-" => old.push_str(&text),
            "+" => new.push_str(&text),
            _ => return None,
        }
    }
    Some(Mutation {
        attacks,
        file,
        target: target.to_owned(),
        test: test.to_owned(),
        old,
        new,
    })
}

fn wrong_with(
    mutation: &Mutation,
    sources: &[Source],
    tests: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let mut problems = Vec::new();
    if mutation.attacks.trim().is_empty() {
        problems.push("it does not say what it attacks".to_owned());
    }
    if !["--lib", "--test it"].contains(&mutation.target.as_str()) {
        problems.push(format!("{:?} is no test binary", mutation.target));
    }
    let test = mutation.test.rsplit("::").next().unwrap_or_default();
    if !tests.contains_key(test) {
        problems.push(format!("there is no test {test:?}"));
    }
    if mutation.old == mutation.new {
        problems.push("it changes nothing".to_owned());
    }
    let file = sources
        .iter()
        .find(|it| it.path == mutation.file && it.path.starts_with("src/"));
    match file.map(|it| it.text.matches(&mutation.old).count()) {
        None => problems.push(format!("there is no {} in the library", mutation.file)),
        Some(1) => {}
        Some(_) if mutation.old.is_empty() => problems.push("it has no old text".to_owned()),
        Some(count) => problems.push(format!("the old text is there {count} times")),
    }
    problems
}

/// The check fails for a list that is missing, short, unreadable or out of date.
#[test]
fn mutations_that_do_not_fit_are_found() {
    let good = "# What it is.\n\n== one\nattacks: G1, a reason\nfile: src/x.rs\n\
        test: --lib x::tests::it_runs_once\n fn f() {\n-    check();\n+    skip();\n\n\
        == two\nattacks: G2, a reason\nfile: src/x.rs\n\
        test: --test it it_runs_once\n-    act();\n";
    assert_eq!(
        read(
            good.split("== one\n")
                .nth(1)
                .unwrap()
                .split("\n== ")
                .next()
                .unwrap()
        ),
        Some(Mutation {
            attacks: "G1, a reason".to_owned(),
            file: "src/x.rs".to_owned(),
            target: "--lib".to_owned(),
            test: "x::tests::it_runs_once".to_owned(),
            old: "fn f() {\n    check();\n".to_owned(),
            new: "fn f() {\n    skip();\n".to_owned(),
        })
    );
    for (from, to, expected) in [
        ("", "", &[] as &[&str]),
        (
            "== two",
            "== one",
            &["one is there twice", "1 mutations, not 2"],
        ),
        (
            "G1, a reason",
            " ",
            &[
                "one: it does not say what it attacks",
                "no mutation attacks G1",
            ],
        ),
        ("--lib", "--bins", &["one: \"--bins\" is no test binary"]),
        (
            "x::tests::it_runs_once",
            "gone",
            &["one: there is no test \"gone\""],
        ),
        ("+    skip", "+    check", &["one: it changes nothing"]),
        (
            "-    act();\n",
            "+    act();\n",
            &["two: it has no old text"],
        ),
        (
            "-    act",
            "-    gone",
            &["two: the old text is there 0 times"],
        ),
        (
            "-    act();",
            "-    twice();",
            &["two: the old text is there 2 times"],
        ),
        (
            "src/x.rs",
            "src/y.rs",
            &["one: there is no src/y.rs in the library"],
        ),
        (
            "src/x.rs",
            "tests/it/x.rs",
            &["one: there is no tests/it/x.rs in the library"],
        ),
        ("G2, a reason", "G1, a reason", &["no mutation attacks G2"]),
        (
            " fn f",
            "fn f",
            &["one: it cannot be read", "no mutation attacks G1"],
        ),
        (
            "file: ",
            "in: ",
            &["one: it cannot be read", "no mutation attacks G1"],
        ),
    ] {
        let sources = [
            Source::new(LIST, &good.replacen(from, to, 1)),
            Source::new(
                "src/x.rs",
                "fn f() {\n    check();\n    act();\n    twice();\n    twice();\n}\n",
            ),
            Source::new(
                "tests/it/x.rs",
                "/// G1: once.\n#[test]\nfn it_runs_once() {}\nfn f() {\n    check();\n}\n",
            ),
        ];
        assert_eq!(problems(&sources, 2, 2), expected, "{from:?} as {to:?}");
    }
    assert_eq!(problems(&[], 0, 0), ["fixtures/mutations.txt is missing"]);
}
