//! Tells whether two JSON texts say the same, as far as the CLI may rewrite one (G4).

use serde_json::{Number, Value};

/// True when both texts hold the same JSON value. The CLI reads and writes an input on its way, so
/// white space, escapes and the order of keys may differ, and `100.0` may come back as `100`; a
/// number that lost digits is another one. Texts that cannot be read must be equal.
pub(super) fn same_json(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    match (serde_json::from_str(one), serde_json::from_str(other)) {
        (Ok(one), Ok(other)) => same_value(&one, &other),
        (_, _) => false,
    }
}

fn same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => same_number(one, other),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, a)| other.get(key).is_some_and(|b| same_value(a, b)))
        }
        (
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_),
            _,
        ) => one == other,
    }
}

fn same_number(one: &Number, other: &Number) -> bool {
    let is_integer = |it: &Number| it.is_i64() || it.is_u64();
    if one == other {
        return true;
    }
    // Two integers that differ are two numbers, even where a float cannot tell them apart.
    !(is_integer(one) && is_integer(other)) && one.as_f64() == other.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G4: what the CLI may rewrite is the same, what changes a value is not.
    #[test]
    fn only_the_way_of_writing_may_differ() {
        for (one, other, same) in [
            (r#"{"a":1,"b":[2]}"#, r#"{ "b": [2], "a": 1 }"#, true),
            (r#"{"a":100.0}"#, r#"{"a":100}"#, true),
            (r#"{"a":1e2}"#, r#"{"a":100}"#, true),
            (r#"{"a":-0.0}"#, r#"{"a":0}"#, true),
            (r#"{"a":"\u00e4\/"}"#, r#"{"a":"ä/"}"#, true),
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ud83d"}"#, true),
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ud83c"}"#, false),
            (
                r#"{"a":9007199254740993}"#,
                r#"{"a":9007199254740992}"#,
                false,
            ),
            (r#"{"a":1}"#, r#"{"a":"1"}"#, false),
            (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#, false),
            (r#"{"a":[1,2]}"#, r#"{"a":[1]}"#, false),
            (r#"{"a":null}"#, r#"{"a":false}"#, false),
            ("{}", "[]", false),
        ] {
            assert_eq!(same_json(one, other), same, "{one} {other}");
            assert_eq!(same_json(other, one), same, "{other} {one}");
        }
    }
}
