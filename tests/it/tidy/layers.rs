//! Every module has a layer, names lower layers only, and keeps what its layer forbids out.

use super::source::{Source, has_word, is_word, repository};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// Plain data.
    Vocabulary,
    /// The CLI's language.
    Protocol,
    /// What decides: no I/O, no clock, no randomness.
    Machines,
    /// Small async traits and their implementations.
    Ports,
    /// What asks a machine, makes its answer durable and does it.
    Drivers,
    /// The fake CLI, faults and conformance kits.
    Testing,
    /// The crate's page, its manual and its programs.
    Top,
}

/// The layer of each module at the crate's root.
const LAYERS: &[(Layer, &[&str])] = &[
    (
        Layer::Vocabulary,
        &[
            "ids",
            "policy",
            "question",
            "settings",
            "turn",
            "event",
            "failure",
            "model_call",
            "definition",
            "snapshot",
            "record",
            "commit",
            "packing",
        ],
    ),
    (Layer::Protocol, &["protocol"]),
    (Layer::Machines, &["segment", "session"]),
    (
        Layer::Ports,
        &["store", "media", "transport", "tool", "process", "clock"],
    ),
    (
        Layer::Drivers,
        &["runner", "spend", "flow", "engine", "client", "telemetry"],
    ),
    (Layer::Testing, &["testing"]),
    (Layer::Top, &["lib", "manual", "bin"]),
];

/// Ports that may name another one, which then is no port but a helper.
const PORTS_THAT_NAME: &[(&str, &str)] = &[
    // A worker's leftovers are recognised by the process they belonged to.
    ("transport", "process"),
];

/// What plain data and the CLI's language do without.
const NOT_IN_DATA: &[&str] = &["tokio", "async", "await", "async_trait"];

/// What a machine does without besides: whatever gives another answer the second time.
const NOT_IN_MACHINES: &[&str] = &[
    "SystemTime",
    "Instant",
    "now()",
    "new_v4",
    "rand",
    "std::fs",
    "std::process",
    "std::env",
    "std::net",
    "std::thread",
];

/// The design's layers hold for every file of the crate.
#[test]
fn modules_name_lower_layers_only() {
    assert_eq!(problems(&repository()), Vec::<String>::new());
}

fn problems(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources {
        let Some(path) = source.path.strip_prefix("src/") else {
            continue;
        };
        if !source.is_rust() {
            continue;
        }
        let module = path.split('/').next().unwrap_or(path);
        let module = module.strip_suffix(".rs").unwrap_or(module);
        let Some(layer) = layer_of(module) else {
            problems.push(format!(
                "{}: no layer has this module; name it in {}",
                source.path,
                file!()
            ));
            continue;
        };
        for (number, line) in source.library_lines() {
            for problem in named_modules(path, &line)
                .into_iter()
                .filter_map(|named| refused(module, layer, &named))
                .chain(forbidden_words(layer, &line))
            {
                problems.push(format!("{}:{number}: {problem}", source.path));
            }
        }
    }
    problems
}

fn layer_of(module: &str) -> Option<Layer> {
    let (layer, _) = LAYERS.iter().find(|(_, names)| names.contains(&module))?;
    Some(*layer)
}

/// Returns what follows the crate's root wherever the line names it, by `crate` or by `super`.
fn named_modules(path: &str, line: &str) -> Vec<String> {
    let parents = path.trim_end_matches("/mod.rs").split('/').count();
    let to_root = "super::".repeat(parents);
    let mut named = Vec::new();
    for root in ["crate::", &to_root] {
        for (start, _) in line.match_indices(root) {
            let before = line[..start].chars().next_back();
            if before.is_some_and(|it| is_word(it) || it == ':') {
                continue;
            }
            let rest = &line[start + root.len()..];
            let end = rest.find(|it| !is_word(it)).unwrap_or(rest.len());
            named.push(rest[..end].to_owned());
        }
    }
    if has_word(line, "use crate as") || line.contains("use crate;") {
        named.push(String::new());
    }
    named
}

/// Returns why this module may not name that one, `None` when it may.
fn refused(module: &str, layer: Layer, named: &str) -> Option<String> {
    if named == module || layer == Layer::Top {
        return None;
    }
    let Some(named_layer) = layer_of(named) else {
        return Some(format!(
            "`crate::{named}` is no module with a layer; name what is used by its own path"
        ));
    };
    let listed = PORTS_THAT_NAME.contains(&(module, named));
    let allowed = match layer {
        Layer::Vocabulary | Layer::Drivers | Layer::Testing => named_layer <= layer,
        Layer::Protocol | Layer::Machines => named_layer < layer,
        Layer::Ports => named_layer < Layer::Machines || listed,
        Layer::Top => true,
    };
    (!allowed).then(|| format!("{module} ({layer:?}) names {named} ({named_layer:?})"))
}

fn forbidden_words(layer: Layer, line: &str) -> Vec<String> {
    let (data, machines) = match layer {
        Layer::Vocabulary | Layer::Protocol => (NOT_IN_DATA, &[][..]),
        Layer::Machines => (NOT_IN_DATA, NOT_IN_MACHINES),
        Layer::Ports | Layer::Drivers | Layer::Testing | Layer::Top => (&[][..], &[][..]),
    };
    let mut found: Vec<String> = data
        .iter()
        .chain(machines)
        .filter(|it| has_word(line, it))
        .map(|it| format!("`{it}` does not belong in {layer:?}"))
        .collect();
    if layer == Layer::Machines && line.contains("use std::{") {
        found.push("name each module of std in a line of its own".to_owned());
    }
    found
}

/// The check fails for every way to break the layers, and for nothing in comments, texts and tests.
#[test]
fn broken_layers_are_found() {
    for (path, text, expected) in [
        ("src/forgotten.rs", "", "no layer has this module"),
        (
            "src/forgotten/deep/mod.rs",
            "pub fn a() {}",
            "no layer has this module",
        ),
        ("src/turn.rs", "use crate::session::X;", "names session"),
        ("src/turn.rs", "use super::session::X;", "names session"),
        (
            "src/record/mod.rs",
            "fn a(x: crate::store::X) {}",
            "names store",
        ),
        (
            "src/record/call.rs",
            "use super::super::store::X;",
            "names store",
        ),
        (
            "src/protocol/mod.rs",
            "use crate::segment::X;",
            "names segment",
        ),
        (
            "src/session/x.rs",
            "use crate::segment::X;",
            "names segment",
        ),
        (
            "src/segment/x.rs",
            "use crate::session::X;",
            "names session",
        ),
        ("src/session/x.rs", "use crate::store::X;", "names store"),
        (
            "src/store/x.rs",
            "use crate::transport::X;",
            "names transport",
        ),
        ("src/store/x.rs", "use crate::session::X;", "names session"),
        (
            "src/process.rs",
            "use crate::transport::X;",
            "names transport",
        ),
        ("src/tool/x.rs", "use crate::engine::X;", "names engine"),
        ("src/engine/x.rs", "use crate::testing::X;", "names testing"),
        ("src/engine/x.rs", "use crate::{ids, testing};", "no module"),
        ("src/engine/x.rs", "use crate::*;", "no module"),
        ("src/engine/x.rs", "use crate::SomethingFlat;", "no module"),
        ("src/engine/x.rs", "use crate as all;", "no module"),
        ("src/ids.rs", "use tokio::sync::watch;", "`tokio`"),
        ("src/protocol/x.rs", "async fn a() {}", "`async`"),
        ("src/session/x.rs", "    a().await;", "`await`"),
        (
            "src/session/x.rs",
            "    let a = Instant::now();",
            "`Instant`",
        ),
        (
            "src/session/x.rs",
            "    let a = Timestamp::now();",
            "`now()`",
        ),
        (
            "src/session/x.rs",
            "use std::time::SystemTime;",
            "`SystemTime`",
        ),
        ("src/segment/x.rs", "    Uuid::new_v4()", "`new_v4`"),
        ("src/segment/x.rs", "use std::fs::File;", "`std::fs`"),
        ("src/segment/x.rs", "use std::{env, fmt};", "module of std"),
        ("src/segment/x.rs", "use rand::random;", "`rand`"),
    ] {
        let found = problems(&[Source::new(path, text)]);
        let [.., last] = &found[..] else {
            panic!("{path}: {text}: nothing found");
        };
        assert!(
            found.iter().any(|it| it.contains(expected)),
            "{path}: {text}: {last}"
        );
    }
    for (path, text) in [
        ("src/turn.rs", "/// See [`X`](crate::session::X).\n// tokio"),
        (
            "src/session/x.rs",
            "use super::state::X; const A: &str = \"tokio\";",
        ),
        (
            "src/session/x.rs",
            "use crate::ids::X;\nuse crate::protocol::Y;",
        ),
        ("src/session/tests.rs", "use crate::testing::X;"),
        (
            "src/session/x.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::testing::X;\n}",
        ),
        ("src/transport/x.rs", "use crate::process::X;"),
        (
            "src/engine/x.rs",
            "use crate::session::X;\nuse crate::client::Y;",
        ),
        ("src/testing/x.rs", "use crate::engine::X;"),
        ("src/session/x.rs", "    self.known(brand, operand)"),
        ("examples/x.rs", "use abide::testing::X;"),
    ] {
        let found = problems(&[Source::new(path, text)]);
        assert_eq!(found, Vec::<String>::new(), "{path}: {text}");
    }
}
