//! The variables that the pinned CLIs know: each is judged before the CLI may get it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead as _;

use abide::runner::CliEnvironment;
use abide::testing::real_cli::PINNED_VERSIONS;

use crate::support::real_cli;

const LIST: &str = include_str!("../../fixtures/cli/variables.txt");

/// Returns the list: each word with its verdict.
fn judged() -> BTreeMap<&'static str, &'static str> {
    let lines = LIST.lines().filter(|it| !it.starts_with('#'));
    let words: Vec<_> = lines.map(|it| it.split_once(' ').unwrap()).collect();
    assert!(
        words.is_sorted_by_key(|(_, word)| word),
        "the list is sorted"
    );
    words
        .into_iter()
        .map(|(verdict, word)| (word, verdict))
        .collect()
}

/// Returns the words of a program that look like variables of the CLI's own.
fn words(program: &[u8]) -> BTreeSet<&str> {
    let is_word = |it: &u8| it.is_ascii_alphanumeric() || *it == b'_';
    let mut found = BTreeSet::new();
    // A letter that is rare, and its place in each beginning.
    for (beginning, letter, before) in [(&b"CLAUDE"[..], b'U', 3), (b"ANTHROPIC", b'H', 3)] {
        let (mut rest, mut at) = (program, 0);
        loop {
            let read = rest.skip_until(letter).unwrap();
            if read == 0 {
                break;
            }
            at += read;
            let Some(start) = (at - 1).checked_sub(before) else {
                continue;
            };
            let text = &program[start..];
            let inside = start > 0 && is_word(&program[start - 1]);
            if inside || !text.starts_with(beginning) {
                continue;
            }
            let length = text
                .iter()
                .position(|it| !is_word(it))
                .unwrap_or(text.len());
            let word = std::str::from_utf8(&text[..length]).unwrap();
            if !word.contains(|it: char| it.is_ascii_lowercase()) {
                found.insert(word);
            }
        }
    }
    found
}

/// G5, G10, R54: every word of the pinned CLIs that may be one of their variables is judged, none of
/// the list is gone, and those that are handed on are known to both.
#[test]
fn every_variable_of_the_pinned_clis_is_judged() {
    let judged = judged();
    let mut known = BTreeSet::new();
    for version in PINNED_VERSIONS {
        let Some(cli) = real_cli(version) else {
            return;
        };
        let program = std::fs::read(cli.program()).unwrap();
        let words: BTreeSet<String> = words(&program).into_iter().map(str::to_owned).collect();
        let kept = judged.iter().filter(|(_, verdict)| **verdict == "kept");
        let unknown: Vec<_> = kept.filter(|(it, _)| !words.contains(**it)).collect();
        assert!(
            unknown.is_empty(),
            "CLI {version} does not know {unknown:?}"
        );
        known.extend(words);
    }
    let new: Vec<_> = known
        .iter()
        .filter(|it| !judged.contains_key(it.as_str()))
        .collect();
    assert!(new.is_empty(), "not judged: {new:#?}");
    let gone: Vec<_> = judged.keys().filter(|it| !known.contains(**it)).collect();
    assert!(gone.is_empty(), "no CLI knows them: {gone:#?}");
}

/// A14, A18: what the list says of a variable is what becomes of it.
#[test]
fn a_variable_is_handed_on_as_it_was_judged() {
    let judged = judged();
    let all = judged
        .keys()
        .fold(CliEnvironment::empty(), |it, name| it.set(*name, "x"));
    let left_out: BTreeSet<&str> = all.left_out().collect();
    for (name, verdict) in &judged {
        let expected = match *verdict {
            "kept" => false,
            "out" => true,
            // Ours is the value; only the place of the login is the application's to say.
            "ours" => *name != "CLAUDE_CONFIG_DIR",
            other => panic!("{other} is no verdict"),
        };
        assert_eq!(left_out.contains(name), expected, "{name}");
    }
    assert!(judged.values().filter(|it| **it == "kept").count() > 100);
}
