//! Each row of the feature table, and each report from the field, is shown by a test, or says why
//! not.
//!
//! `fixtures/rows.txt` and `fixtures/field_reports.txt` have one line for each id, in order:
//!
//! ```text
//! A01 a_test, another_test
//! A08 n/a: why there is nothing to show
//! A06 superseded: what was decided instead
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::named::tests_by_name;
use super::source::{Source, has_word, repository};

const ROWS: &str = "fixtures/rows.txt";
const FIELD_REPORTS: &str = "fixtures/field_reports.txt";

/// The sections of the feature table, each with the number of its rows.
const SECTIONS: &[(char, usize)] = &[
    ('A', 22),
    ('B', 13),
    ('C', 11),
    ('D', 20),
    ('E', 21),
    ('F', 8),
    ('G', 35),
    ('H', 19),
    ('I', 29),
    ('J', 10),
    ('K', 9),
    ('L', 36),
    ('M', 39),
    ('N', 60),
    ('O', 57),
    ('P', 36),
    ('Q', 15),
    ('R', 35),
    ('S', 5),
];

/// Sections whose ids also mean something else in doc comments: guarantees and field reports.
const AMBIGUOUS: [char; 2] = ['G', 'R'];

/// The reports from the field about deferrals (01 to 11), the control channel (to 23), processes
/// (to 32), reading (to 41), transcripts (to 58) and permissions (from 64).
const REPORTS: &[u32] = &[
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 26, 28, 29, 30, 31,
    32, 34, 35, 36, 37, 38, 39, 41, 43, 44, 46, 47, 48, 51, 52, 53, 54, 56, 57, 58, 64, 65, 67, 68,
    69, 71, 72, 73, 74, 75, 77, 78, 79,
];

/// Nothing of the feature table is forgotten, and what a row names is there.
#[test]
fn every_row_is_shown_or_explained() {
    assert_eq!(
        problems(&repository(), ROWS, &rows(SECTIONS)),
        [] as [String; 0]
    );
}

/// The same for the reports from the field.
#[test]
fn every_field_report_is_tried_or_explained() {
    let ids: Vec<String> = REPORTS.iter().map(|it| format!("R{it:02}")).collect();
    assert_eq!(
        problems(&repository(), FIELD_REPORTS, &ids),
        [] as [String; 0]
    );
}

fn rows(sections: &[(char, usize)]) -> Vec<String> {
    let ids = sections.iter().flat_map(|(section, count)| {
        (1..=*count).map(move |number| format!("{section}{number:02}"))
    });
    ids.collect()
}

fn problems(sources: &[Source], path: &str, ids: &[String]) -> Vec<String> {
    let Some(list) = sources.iter().find(|it| it.path == path) else {
        return vec![format!("{path} is missing")];
    };
    let tests = tests_by_name(sources);
    let mut problems = Vec::new();
    let mut found = Vec::new();
    for line in list.text.lines() {
        let (id, what) = line.split_once(' ').unwrap_or((line, ""));
        found.push(id);
        problems.extend(wrong_with(id, what, &tests));
    }
    let known: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let mut seen = BTreeSet::new();
    for id in &found {
        if !known.contains(id) {
            problems.push(format!("{id:?} is no id"));
        } else if !seen.insert(*id) {
            problems.push(format!("{id} is there twice"));
        }
    }
    let missing = ids.iter().filter(|it| !seen.contains(it.as_str()));
    problems.extend(missing.map(|it| format!("{it} has no line")));
    if problems.is_empty() && found != ids {
        problems.push(format!("{path} is not in order"));
    }
    problems
}

/// Returns everything that is wrong with what a line says of its id.
fn wrong_with(id: &str, what: &str, tests: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    if let Some(reason) = what.strip_prefix("n/a:") {
        let ambiguous = id.starts_with(AMBIGUOUS);
        let shown = tests
            .iter()
            .filter(|(_, docs)| docs.iter().any(|it| has_word(it, id)));
        let shown = shown.map(|(name, _)| format!("{id} is n/a, and the test {name} names it"));
        let mut problems: Vec<String> = shown.filter(|_| !ambiguous).collect();
        if reason.trim().is_empty() {
            problems.push(format!("{id} has no reason"));
        }
        return problems;
    }
    if let Some(place) = what.strip_prefix("superseded:") {
        return match place.trim() {
            "" => vec![format!("{id} does not say by what")],
            _ => Vec::new(),
        };
    }
    let names = what.split(", ").filter(|it| !tests.contains_key(*it));
    names
        .map(|it| format!("{id}: there is no test {it:?}"))
        .collect()
}

/// The check fails for a list that is missing, incomplete, disordered or out of date, and for
/// reasons that are none.
#[test]
fn unproven_rows_are_found() {
    let ids = rows(&[('A', 2), ('B', 1), ('G', 1)]);
    assert_eq!(ids, ["A01", "A02", "B01", "G01"]);
    let good = [
        "A01 one, two",
        "A02 n/a: a reason",
        "B01 superseded: G1",
        "G01 n/a: later",
    ];
    let with = |line: usize, text: &'static str| {
        let mut lines = good.to_vec();
        lines[line] = text;
        lines
    };
    for (lines, expected) in [
        (good.to_vec(), None),
        (good[1..].to_vec(), Some("A01 has no line")),
        (with(1, "A01 one"), Some("A01 is there twice")),
        (with(1, "A03 one"), Some("\"A03\" is no id")),
        (with(1, ""), Some("\"\" is no id")),
        (
            vec![good[1], good[0], good[2], good[3]],
            Some("not in order"),
        ),
        (
            with(0, "A01 one, gone"),
            Some("A01: there is no test \"gone\""),
        ),
        (with(0, "A01"), Some("A01: there is no test \"\"")),
        (
            with(0, "A01 one,two"),
            Some("A01: there is no test \"one,two\""),
        ),
        (with(0, "A01 n/a: "), Some("A01 has no reason")),
        (with(0, "A01 superseded:"), Some("A01 does not say by what")),
        (
            with(2, "B01 n/a: a reason"),
            Some("B01 is n/a, and the test two names it"),
        ),
    ] {
        let sources = [
            Source::new(ROWS, &lines.join("\n")),
            Source::new(
                "tests/it/x.rs",
                "/// G01: a row.\n#[test]\nfn one() {}\n/// B01: it.\n#[test]\nfn two() {}\n",
            ),
        ];
        let found = problems(&sources, ROWS, &ids);
        match expected {
            None => assert_eq!(found, [] as [String; 0]),
            Some(expected) => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{expected}: {found:?}"
            ),
        }
    }
    assert_eq!(problems(&[], ROWS, &ids), ["fixtures/rows.txt is missing"]);
}
