//! The files of the repository as text, and what of a text is code.

use std::fs;
use std::path::Path;

/// One file of the repository, or a planted one.
pub(super) struct Source {
    /// Its path from the repository's root, with slashes.
    pub(super) path: String,
    /// What is in it.
    pub(super) text: String,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for a Rust file that holds nothing but tests.
    pub(super) fn is_test_file(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
    }

    /// Returns how many lines come before the tests module at the end, all when there is none.
    pub(super) fn lines_before_tests(&self) -> usize {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_start = |pair: &[&str]| {
            pair[0].starts_with("#[cfg(")
                && pair[0].contains("test")
                && pair[1].starts_with("mod ")
                && pair[1].ends_with('{')
        };
        lines.windows(2).position(is_start).unwrap_or(lines.len())
    }

    /// Returns the numbered lines of code that are no tests, without comments and texts.
    pub(super) fn library_lines(&self) -> Vec<(usize, String)> {
        let until = match self.is_test_file() {
            true => 0,
            false => self.lines_before_tests(),
        };
        let mut lines = self.code_lines();
        lines.truncate(until);
        lines
    }

    /// Returns the numbered lines of test code, without comments and texts.
    pub(super) fn test_lines(&self) -> Vec<(usize, String)> {
        let from = self.library_lines().len();
        self.code_lines().split_off(from)
    }

    fn code_lines(&self) -> Vec<(usize, String)> {
        let code = code_only(&self.text);
        let mut code = code.lines();
        let lines = self.text.lines().map(|_| code.next().unwrap_or_default());
        (1..).zip(lines.map(str::to_owned)).collect()
    }
}

/// Reads every file of the repository but what tools made.
pub(super) fn repository() -> Vec<Source> {
    let mut found = Vec::new();
    collect(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn collect(directory: &Path, prefix: &str, found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if ["target", ".git", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{path}/"), found);
        } else {
            let bytes = fs::read(entry.path()).unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.push(Source { path, text });
        }
    }
}

/// True when the text has this identifier or path, and not as a part of a longer word.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

pub(super) fn is_word(it: char) -> bool {
    it.is_alphanumeric() || it == '_'
}

/// Returns the Rust text without its comments and without what is between quotes, line by line.
pub(super) fn code_only(text: &str) -> String {
    let text: Vec<char> = text.chars().collect();
    let mut code = String::new();
    let mut at = 0;
    while at < text.len() {
        let end = match &text[at..] {
            ['/', '/', ..] => find(&text, at, &['\n']),
            ['/', '*', ..] => end_of_comment(&text, at),
            ['"', ..] => end_of_quoted(&text, at, '"'),
            ['r', '"' | '#', ..] if at == 0 || !is_word(text[at - 1]) || text[at - 1] == 'b' => {
                end_of_raw(&text, at)
            }
            ['\'', '\\', ..] | ['\'', _, '\'', ..] => end_of_quoted(&text, at, '\''),
            _ => at,
        };
        if end == at {
            code.push(text[at]);
            at += 1;
        } else {
            code.extend(text[at..end].iter().filter(|it| **it == '\n'));
            at = end;
        }
    }
    code
}

fn find(text: &[char], from: usize, what: &[char]) -> usize {
    (from..text.len())
        .find(|at| text[*at..].starts_with(what))
        .unwrap_or(text.len())
}

fn end_of_comment(text: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < text.len() {
        match &text[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn end_of_quoted(text: &[char], start: usize, quote: char) -> usize {
    let mut at = start + 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Returns the end of a raw text, or `start` when it is a raw identifier.
fn end_of_raw(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..]
        .iter()
        .take_while(|it| **it == '#')
        .count();
    let open = start + 1 + hashes;
    if text.get(open) != Some(&'"') {
        return start;
    }
    let mut close = vec!['"'];
    close.extend(std::iter::repeat_n('#', hashes));
    (find(text, open + 1, &close) + close.len()).min(text.len())
}

/// Comments and texts do not count as code, whatever stands in them, and lines keep their numbers.
#[test]
fn code_is_what_is_left_without_comments_and_texts() {
    for (text, code) in [
        ("a // \"b\n/// c\nd", "a \n\nd"),
        ("a /* b /* c\n */ d */ e", "a \n e"),
        (r#"a("b // \" c") + d"#, "a() + d"),
        ("a(r#\"b \" // \n c\"#) d", "a(\n) d"),
        ("a(br\"b\\\") d", "a(b) d"),
        (
            "r#type 'a' b'\\'' '\"' <'a> x: &'a str // b",
            "r#type  b  <'a> x: &'a str ",
        ),
        ("a(\"https://b\").c", "a().c"),
    ] {
        assert_eq!(code_only(text), code, "{text}");
    }
}

/// A tests module at the end is no library code, and a declaration of one in the middle ends nothing.
#[test]
fn tests_are_told_from_library_code() {
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod tests {\n    c\n}\n";
    let source = Source::new("src/x.rs", text);
    assert_eq!(source.lines_before_tests(), 4);
    assert_eq!(source.library_lines().len(), 4);
    assert_eq!(source.test_lines()[2], (7, "    c".to_owned()));
    let source = Source::new("src/x/tests/y.rs", text);
    assert_eq!(
        (source.library_lines().len(), source.test_lines().len()),
        (0, 8)
    );
}
