//! Each guarantee has a row in the manual, and the tests that the row names exist and name it back.

use std::collections::BTreeMap;

use super::named::tests_by_name;
use super::source::{Source, has_word, repository};

const CHAPTER: &str = "src/manual/guarantees.md";
pub(super) const GUARANTEES: u32 = 14;
/// What stands in the place of the tests when there is none.
const NO_TEST: &str = "—";

/// Guarantees that no test names yet, and why. An entry that is no longer true fails.
const WITHOUT_TEST: &[(u32, &str)] = &[];

/// The manual promises nothing without a test, apart from what is listed above.
#[test]
fn guarantees_are_named_by_tests() {
    assert_eq!(
        problems(&repository(), GUARANTEES, WITHOUT_TEST),
        Vec::<String>::new()
    );
}

fn problems(sources: &[Source], guarantees: u32, without: &[(u32, &str)]) -> Vec<String> {
    let Some(chapter) = sources.iter().find(|it| it.path == CHAPTER) else {
        return vec![format!(
            "{CHAPTER} is missing: it lists G1 to G{guarantees} as rows \
             `| G1 | promise | what holds it | tests |`"
        )];
    };
    let tests = tests_by_name(sources);
    let mut problems = Vec::new();
    let mut rows = BTreeMap::new();
    for line in chapter.text.lines().filter(|it| it.starts_with("| G")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, promise, holder, named, ""] = cells[..] else {
            problems.push(format!("{CHAPTER}: a row has four cells: {line}"));
            continue;
        };
        let Ok(number) = number[1..].parse::<u32>() else {
            problems.push(format!("{CHAPTER}: `{number}` is no guarantee"));
            continue;
        };
        if promise.is_empty() || holder.is_empty() {
            problems.push(format!("{CHAPTER}: G{number} has an empty cell"));
        }
        if !(1..=guarantees).contains(&number) || rows.insert(number, named).is_some() {
            problems.push(format!("{CHAPTER}: G{number} is unknown or there twice"));
        }
    }
    for number in 1..=guarantees {
        let excused = without.iter().any(|(it, _)| *it == number);
        let Some(named) = rows.get(&number) else {
            problems.push(format!("{CHAPTER}: G{number} has no row"));
            continue;
        };
        match (*named == NO_TEST, excused) {
            (true, true) => {}
            (true, false) => problems.push(format!("G{number} has no test")),
            (false, true) => problems.push(format!("G{number} is excused and has tests")),
            (false, false) => {
                let list = named.split(',').map(str::trim);
                problems.extend(list.filter_map(|it| refused(number, it, &tests)));
            }
        }
    }
    problems
}

/// Returns what is wrong with a test that the row names, `None` when it fits.
fn refused(number: u32, named: &str, tests: &BTreeMap<String, Vec<String>>) -> Option<String> {
    let name = named.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
    let Some(docs) = name.and_then(|it| tests.get(it)) else {
        return Some(format!("G{number}: there is no test {named}"));
    };
    let guarantee = format!("G{number}");
    let names_back = docs.iter().any(|it| has_word(it, &guarantee));
    (!names_back).then(|| format!("G{number}: the doc comment of {named} does not name it"))
}

/// The check fails for a missing chapter, a missing or doubled row, a test that does not exist or
/// does not name the guarantee, and an excuse that is missing or out of date.
#[test]
fn unproven_guarantees_are_found() {
    let one = "| G1 | once | `X` | `it_runs_once` |\n";
    let two = "| G2 | one key | `Y` | — |\n";
    let test = "/// G1: once.\n#[tokio::test(start_paused = true)]\nasync fn it_runs_once() {}\n";
    let excuse: &[(u32, &str)] = &[(2, "a reason")];
    for (chapter, test, without, expected) in [
        (format!("{one}{two}"), test, excuse, None),
        (one.to_owned(), test, excuse, Some("G2 has no row")),
        (format!("{one}{two}"), test, &[], Some("G2 has no test")),
        (
            format!("{one}{one}{two}"),
            test,
            excuse,
            Some("there twice"),
        ),
        (
            format!("{one}{two}| G3 | a | b | — |"),
            test,
            excuse,
            Some("G3 is unknown"),
        ),
        (
            format!("{one}| G2 | a | — |"),
            test,
            excuse,
            Some("four cells"),
        ),
        (
            format!("{one}| G2 | | b | — |"),
            test,
            excuse,
            Some("empty cell"),
        ),
        (
            format!("{one}| Gx | a | b | — |\n{two}"),
            test,
            excuse,
            Some("no guarantee"),
        ),
        (
            format!("{one}{}", two.replace('—', "`it_runs_once`")),
            test,
            excuse,
            Some("G2 is excused and has tests"),
        ),
        (
            format!("{one}{}", two.replace('—', "`it_runs_once`")),
            test,
            &[],
            Some("does not name it"),
        ),
        (format!("{one}{two}"), "", excuse, Some("there is no test")),
        (
            format!("{one}{two}"),
            "/// G1: once.\nfn it_runs_once() {}",
            excuse,
            Some("there is no test"),
        ),
        (
            format!("{one}{two}"),
            "const ALL: X = |it| Box::pin(it_runs_once(it));\n/// G1: once.\nasync fn it_runs_once() {}",
            excuse,
            None,
        ),
        (
            format!("{one}{two}"),
            "const ALL: X = |it| Box::pin(it_runs(it));\n/// G1: once.\nasync fn it_runs_once() {}",
            excuse,
            Some("there is no test"),
        ),
        (
            format!("{one}{two}"),
            "/// G12: another.\n#[test]\nfn it_runs_once() {}",
            excuse,
            Some("does not name it"),
        ),
        (
            format!("{}{two}", one.replace("` |\n", "`, `gone` |\n")),
            test,
            excuse,
            Some("there is no test `gone`"),
        ),
        (
            format!("{}{two}", one.replace("`it_runs_once`", "")),
            test,
            excuse,
            Some("there is no test"),
        ),
    ] {
        let sources = [
            Source::new(CHAPTER, &chapter),
            Source::new("tests/it/x.rs", test),
        ];
        let found = problems(&sources, 2, without);
        match expected {
            None => assert_eq!(found, Vec::<String>::new(), "{chapter}"),
            Some(expected) => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{chapter}: {expected}: {found:?}"
            ),
        }
    }
    let missing = problems(&[Source::new("tests/it/x.rs", test)], 2, excuse);
    assert_eq!(
        missing,
        [
            "src/manual/guarantees.md is missing: it lists G1 to G2 as rows \
             `| G1 | promise | what holds it | tests |`"
        ]
    );
}
