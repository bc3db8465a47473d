//! The tests of the repository by their names, each with what its doc comment says.

use std::collections::BTreeMap;

use super::source::{Source, is_word};

/// Returns the test functions of all files, each with the doc comments of those that are called so.
///
/// What a table runs counts as a test too: a scenario that stands in one as `Box::pin(name(it))`,
/// and an `async fn name` that stands in a macro's table as `name;` under its doc comment.
pub(super) fn tests_by_name(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|it| it.is_rust()) {
        let mut doc = String::new();
        let mut is_test = false;
        for line in source.text.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                doc.push_str(text);
            } else if line.starts_with("#[") {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            } else {
                if let Some(name) = declared(source, line, is_test) {
                    found.entry(name.to_owned()).or_default().push(doc.clone());
                }
                doc.clear();
                is_test = false;
            }
        }
    }
    found
}

/// Returns the name of the test that the line declares; `None` when it declares none.
fn declared<'a>(source: &Source, line: &'a str, is_test: bool) -> Option<&'a str> {
    if let Some((_, rest)) = line.split_once("fn ") {
        let end = rest.find(|it| !is_word(it)).unwrap_or(rest.len());
        let name = &rest[..end];
        let scenario = format!("Box::pin({name}(it))");
        let is_scenario = source.is_test_file() && source.text.contains(&scenario);
        return (is_test || is_scenario).then_some(name);
    }
    let name = line.strip_suffix(';')?;
    let is_name = !name.is_empty() && name.chars().all(is_word);
    let function = format!("async fn {name}(");
    (is_name && source.is_test_file() && source.text.contains(&function)).then_some(name)
}

/// A test, a scenario and an entry of a table are found with their doc comments, and nothing else is.
#[test]
fn tests_are_found_by_their_names() {
    let text = "\
        /// One.\n#[test]\nfn plain() {}\n\
        /// Two.\n#[tokio::test(start_paused = true)]\nasync fn with_time() {}\n\
        const ALL: X = |it| Box::pin(scenario(it));\n/// Three.\nasync fn scenario(world: &X) {}\n\
        table! {\n    /// Four,\n    /// in two lines.\n    entry;\n    /// Five.\n    no_function;\n}\n\
        async fn entry(world: &X) {}\n/// Six.\nfn helper() {\n    counter;\n}\n";
    let named = |path| {
        let found = tests_by_name(&[Source::new(path, text)]).into_iter();
        found
            .map(|(name, docs)| format!("{name}:{}", docs.join("|")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        named("tests/it/x.rs"),
        [
            "entry: Four, in two lines.",
            "plain: One.",
            "scenario: Three.",
            "with_time: Two."
        ]
    );
    assert_eq!(named("src/x.rs"), ["plain: One.", "with_time: Two."]);
}
