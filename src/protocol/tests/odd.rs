//! Lines that no CLI writes today, or that none should write: kept, passed over or refused by type,
//! and never a panic.

use proptest::prelude::*;

use super::*;

/// Recorded lines of CLI 2.1.316 with most of its frames.
const RECORDED: &str = concat!(
    include_str!("../../../fixtures/segment/2.1.316/two_calls_defer_deny.jsonl"),
    include_str!("../../../fixtures/segment/2.1.316/error_529.jsonl"),
    include_str!("../../../fixtures/segment/2.1.316/thinking.jsonl"),
);

fn decoded(line: &str) -> CliFrame {
    decode_line(line.as_bytes()).unwrap()
}

fn unknown(line: &str) -> (String, Option<String>) {
    match decoded(line) {
        CliFrame::Unknown { kind, subtype } => (kind, subtype),
        it => panic!("{it:?}"),
    }
}

fn blocks(line: &str) -> Vec<ContentBlock> {
    match decoded(line) {
        CliFrame::Assistant(frame) => content_blocks(&frame.message.content).unwrap(),
        CliFrame::User(frame) => content_blocks(&frame.message.content).unwrap(),
        it => panic!("{it:?}"),
    }
}

/// R37: a type, a subtype, a stream event or a piece of one that is not known is kept by name,
/// whatever the rest looks like.
#[test]
fn what_is_not_known_is_kept_by_name() {
    let named = |kind: &str, subtype: Option<&str>| (kind.to_owned(), subtype.map(str::to_owned));
    for (line, expected) in [
        (
            r#"{"type":"rate_limit_event","x":[{}]}"#,
            named("rate_limit_event", None),
        ),
        (r#"{"type":"keep_alive"}"#, named("keep_alive", None)),
        (
            r#"{"subtype":"sub","message":7,"type":"new"}"#,
            named("new", Some("sub")),
        ),
        (r#"{"type":"new","subtype":7}"#, named("new", None)),
        (r#"{"type":7}"#, named("", None)),
        (r#"{"no":"type"}"#, named("", None)),
        (
            r#"{"type":"system","subtype":"new","session_id":7}"#,
            named("system", Some("new")),
        ),
        (r#"{"type":"system","subtype":{}}"#, named("system", None)),
        (
            r#"{"type":"stream_event","event":{"type":"new","delta":[1]}}"#,
            named("stream_event", None),
        ),
        (
            r#"{"type":"stream_event","event":{"delta":{"type":"new_delta","text":{"a":1}}}}"#,
            named("stream_event", None),
        ),
        (
            r#"{"type":"stream_event","event":{"delta":{"type":["text_delta"],"thinking":1}}}"#,
            named("stream_event", None),
        ),
    ] {
        assert_eq!(unknown(line), expected, "{line}");
    }
}

/// R37: a content block of an unknown kind does not hide the ones beside it, whatever its fields
/// look like; a known one that does not fit is refused.
#[test]
fn unknown_blocks_stand_beside_known_ones() {
    let line = r#"{"type":"user","message":{"content":[
        {"type":"brand_new","id":7,"text":{"a":[]},"name":null,"content":{}},
        {"type":"tool_result","tool_use_id":"t","content":[{"type":"hologram","text":8},{"type":"text","text":"ok"}]}]}}"#
        .replace('\n', "");
    let blocks = blocks(&line);
    let kinds: Vec<&str> = blocks.iter().map(|it| it.kind.as_str()).collect();
    assert_eq!(kinds, ["brand_new", "tool_result"]);
    assert_eq!(
        flattened_text(blocks[1].content.as_deref()),
        "[hologram content omitted]\nok"
    );
    for content in [
        r#"[{"type":"text","text":7}]"#,
        r#"[{"type":"tool_result","tool_use_id":7}]"#,
        r#"[{"text":"no type"}]"#,
        r#"[["text"]]"#,
        "[7]",
        "7",
        "null",
    ] {
        assert!(content_blocks(&raw(content)).is_err(), "{content}");
    }
}

/// A control request of an unknown subtype keeps its id, because the CLI waits for the answer; one
/// that cannot be answered is refused, and so ends its segment.
#[test]
fn an_unknown_request_keeps_its_id() {
    let line = r#"{"type":"control_request","request_id":"r","request":{"subtype":"new","x":[]}}"#;
    assert!(matches!(
        decoded(line),
        CliFrame::ControlRequest { request_id, request: ControlRequest::Unknown { subtype } }
            if request_id == "r" && subtype == "new"
    ));
    for line in [
        r#"{"type":"control_request","request":{"subtype":"new"}}"#,
        r#"{"type":"control_request","request_id":"r"}"#,
        r#"{"type":"control_request","request_id":"r","request":{}}"#,
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"hook_callback"}}"#,
    ] {
        assert!(decode_line(line.as_bytes()).is_err(), "{line}");
    }
}

/// R39: half of a surrogate pair, which is no text in Rust, is survived wherever a text of people
/// or a model may stand, and stays as it is in what is passed on.
#[test]
fn half_a_surrogate_pair_is_survived_everywhere() {
    let cut = "a\u{fffd}\u{fffd}\u{fffd}";
    assert_eq!(
        unknown(r#"{"type":"a\ud83d","subtype":"\ud83d","x":"\ud83d"}"#).0,
        cut
    );
    assert!(matches!(
        decoded(r#"{"type":"stream_event","event":{"delta":{"type":"text_delta","text":"a\ud83d"}}}"#),
        CliFrame::Delta(Delta::Text(text)) if text == cut
    ));
    assert!(matches!(
        decoded(r#"{"type":"control_response","response":{"subtype":"error","request_id":"r","error":"a\ud83d"}}"#),
        CliFrame::ControlResponse(reply) if reply.error.as_deref() == Some(cut)
    ));
    let CliFrame::Result(result) = decoded(
        r#"{"type":"result","subtype":"success","is_error":true,"result":"a\ud83d","errors":["a\ud83d"],
            "deferred_tool_use":{"id":"t","name":"n","input":{"a":"\ud83d"}}}"#,
    ) else {
        panic!("a result");
    };
    assert_eq!(result.result.unwrap().0, cut);
    assert_eq!(result.errors.unwrap()[0].0, cut);
    assert_eq!(
        result.deferred_tool_use.unwrap().input.get(),
        r#"{"a":"\ud83d"}"#
    );
    let CliFrame::ControlRequest {
        request: ControlRequest::Hook(hook),
        ..
    } = decoded(
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"hook_callback","input":{"tool_input":{"\ud83d":"\ud83d"}}}}"#,
    )
    else {
        panic!("a hook");
    };
    assert_eq!(
        hook.input.tool_input.unwrap().get(),
        r#"{"\ud83d":"\ud83d"}"#
    );
}

/// Bytes that are no UTF-8 and NUL bytes are no JSON: a frame that holds them where it is read is
/// refused, everything else is passed over.
#[test]
fn bytes_that_are_no_json_are_refused_or_passed_over() {
    for line in [
        &b"\0"[..],
        b"\0{\"type\":\"result\"}",
        b"{\"type\":\"result\"}\0",
        b"{\"type\":\"re\0sult\"}",
        b"{\"type\":\"re\xffsult\"}",
        b"\xef\xbb\xbf{\"type\":\"result\"}",
        b"{\"type\":\"result\",\"is_er",
        b"{\"type\":\"keep_alive\"}{\"type\":\"result\"}",
    ] {
        assert!(
            matches!(decode_line(line), Ok(CliFrame::NotJson)),
            "{line:?}"
        );
    }
    let mirror =
        b"{\"type\":\"transcript_mirror\",\"filePath\":\"p\",\"entries\":[{\"a\":\"\xff\"}]}";
    assert!(matches!(
        decode_line(mirror),
        Err(ProtocolError::Malformed { kind, .. }) if kind == "transcript_mirror"
    ));
    assert!(matches!(
        decode_line(b"{\"type\":\"keep_alive\",\"x\":\"\xff\"}"),
        Ok(CliFrame::Unknown { .. })
    ));
}

/// R37, G5: a question of the CLI that cannot be read is an error and never passed over: the CLI
/// waits for its answer.
#[test]
fn a_mangled_question_is_refused() {
    let whole = r#"{"type":"control_request","request_id":"r","request":{"subtype":"hook_callback","input":{}}}"#;
    assert!(matches!(
        decode_line(whole.as_bytes()),
        Ok(CliFrame::ControlRequest { .. })
    ));
    let cut = &whole[..40];
    for line in [
        cut.to_owned(),
        format!("{whole}{whole}"),
        format!("{cut}[DEBUG] x"),
        format!("[DEBUG] x{whole}"),
        format!("[{whole}]"),
        whole.replacen(r#""request_id":"r","#, "", 1),
        whole.replacen(r#""r""#, "7", 1),
        whole.replacen(r#""subtype":"hook_callback","#, "", 1),
        whole.replacen(r#"{"subtype""#, r#"{"subtype":"x","subtype""#, 1),
        whole.replacen('{', r#"{"type":"x","#, 1),
    ] {
        let error = decode_line(line.as_bytes()).unwrap_err();
        assert!(
            matches!(&error, ProtocolError::Malformed { kind, bytes, .. }
                if kind == "control_request" && *bytes <= line.len()),
            "{line}: {error}"
        );
    }
    // What only tells of one is none.
    for line in ["[DEBUG] control_request r", r#"[DEBUG] "control_request""#] {
        assert!(matches!(
            decode_line(line.as_bytes()),
            Ok(CliFrame::NotJson)
        ));
    }
}

/// G11: entries are the mirrored bytes: number forms, escapes, key order, blanks and all.
#[test]
fn mirrored_entries_are_the_bytes_of_the_line() {
    let entries = [
        r#"{"b":1e2,"a":-0,"n":12345678901234567890123456789,"f":0.10}"#,
        r#"{"s":"\u00e4\/\u2028ä😀\ud83d","s":2}"#,
        "{ \"spaced\" : [ 1 ,2 ] }",
        r#"{"deep":[[[[{"x":null}]]]]}"#,
        "7",
    ];
    let line = format!(
        r#"{{"entries":[{}],"filePath":"p","type":"transcript_mirror"}}"#,
        entries.join(",")
    );
    let CliFrame::Mirror(frame) = decoded(&line) else {
        panic!("a mirror");
    };
    let found: Vec<&str> = frame.entries.iter().map(|it| it.as_str()).collect();
    assert_eq!(found, entries);
}

/// R34, R36: lines of 12 and 60 MB are frames like any other.
#[test]
fn big_lines_are_frames() {
    let text = "ä".repeat(6_000_000);
    let line = format!(
        r#"{{"type":"assistant","message":{{"id":"m","content":[{{"type":"text","text":"{text}"}}]}}}}"#
    );
    assert!(blocks(&line)[0].text.as_ref().unwrap().0 == text);
    let entry = format!(r#"{{"uuid":"u","data":"{}"}}"#, "x".repeat(60_000_000));
    let line = format!(r#"{{"type":"transcript_mirror","filePath":"p","entries":[{entry}]}}"#);
    let CliFrame::Mirror(frame) = decoded(&line) else {
        panic!("a mirror");
    };
    assert!(frame.entries[0].as_str() == entry);
}

/// Nesting is no way to overflow the stack.
#[test]
fn deep_nesting_is_survived() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(unknown(&format!(r#"{{"type":"new","x":{deep}}}"#)).0, "new");
    let line = format!(r#"{{"type":"transcript_mirror","filePath":"p","entries":[{deep}]}}"#);
    assert!(matches!(decoded(&line), CliFrame::Mirror(_)));
}

fn no_files() -> ProptestConfig {
    ProptestConfig {
        cases: 512,
        // A failure is kept as a test of its own, not as a seed in the tree.
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Reads a line and all that is read of its frame later.
fn read_all(line: &[u8]) {
    match decode_line(line) {
        Ok(CliFrame::Assistant(frame)) => drop(content_blocks(&frame.message.content)),
        Ok(CliFrame::User(frame)) => {
            for block in content_blocks(&frame.message.content).unwrap_or_default() {
                drop(flattened_text(block.content.as_deref()));
            }
        }
        Ok(CliFrame::Mirror(frame)) => {
            for entry in frame.entries {
                drop(entry.head());
            }
        }
        Ok(_) => {}
        Err(error) => drop(error.to_string()),
    }
}

proptest! {
    #![proptest_config(no_files())]

    /// Bytes of any kind never panic.
    #[test]
    fn any_bytes_are_read_without_a_panic(line in prop::collection::vec(any::<u8>(), 0..400)) {
        read_all(&line);
        read_all(&[b"{\"type\":\"assistant\",", &line[..]].concat());
    }

    /// Recorded lines with changed, lost and added bytes never panic.
    #[test]
    fn changed_recordings_are_read_without_a_panic(
        (index, cut) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..3, any::<u8>()), 1..8),
        is_cut in any::<bool>(),
    ) {
        let lines: Vec<&str> = RECORDED.lines().collect();
        let mut line = index.get(&lines).as_bytes().to_vec();
        for (at, change, byte) in changes {
            let at = at.index(line.len());
            match change {
                0 => line[at] = byte,
                1 => line.insert(at, byte),
                _ => drop(line.remove(at)),
            }
        }
        if is_cut {
            line.truncate(cut.index(line.len()));
        }
        read_all(&line);
    }
}
