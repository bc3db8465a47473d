use serde_json::json;

use super::*;

fn one(question: Value) -> String {
    json!({"questions": [question]}).to_string()
}

fn colour() -> Value {
    json!({
        "question": "Which colour?", "header": "Colour", "multiSelect": true,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}],
    })
}

fn with(name: &str, value: Value) -> String {
    let mut question = colour();
    question[name] = value;
    one(question)
}

/// O47, O48: a set that could not be shown or answered as it is meant is refused whole, in fixed words.
#[test]
fn a_set_is_asked_whole_or_not_at_all() {
    let read = |it: &str| read_questions(it, QuestionBounds::CLAUDE_CODE);
    let asked = read(&one(colour())).unwrap();
    assert_eq!(asked[0].options[1].label, "Blue");
    let labels = |count: usize| -> Value {
        (0..count)
            .map(|it| json!({"label": it.to_string()}))
            .collect()
    };
    let many = |count: usize| -> String {
        let questions: Value = (0..count)
            .map(|it| json!({"question": it.to_string(), "options": labels(2)}))
            .collect();
        json!({"questions": questions}).to_string()
    };
    assert!(read(&many(4)).is_ok());
    for (refused, why) in [
        ("7".to_owned(), "no object"),
        ("{}".to_owned(), "no set"),
        (json!({"questions": "all"}).to_string(), "no set"),
        (one(json!({"options": []})), "no set"),
        (many(0), "too few or too many questions"),
        (many(5), "too few or too many questions"),
        (
            json!({"questions": [colour(), colour()]}).to_string(),
            "the same",
        ),
        (
            json!({"questions": [colour()], "answers": null}).to_string(),
            "answers already",
        ),
        (with("options", labels(1)), "options"),
        (with("options", labels(5)), "options"),
        (
            with("options", json!([{"label": "a"}, {"label": "a"}])),
            "same label",
        ),
        (
            with("options", json!([{"label": "a"}, {"label": " "}])),
            "blank",
        ),
        (
            with(
                "options",
                json!([{"label": "a", "preview": "<b>"}, {"label": "b"}]),
            ),
            "preview",
        ),
        (
            with(
                "options",
                json!([{"label": "a"}, {"label": "b".repeat(401)}]),
            ),
            "too long",
        ),
        (
            with(
                "options",
                json!([{"label": "a"}, {"label": "b", "description": "c".repeat(2_001)}]),
            ),
            "too long",
        ),
        (with("question", json!("\u{3000}")), "blank"),
        (with("question", json!("q".repeat(8_001))), "too long"),
        (with("header", json!("h".repeat(201))), "too long"),
    ] {
        let told = read(&refused).unwrap_err();
        assert!(told.contains(why), "{told}: {refused}");
    }
    // A custom tool may ask for words alone, and more.
    let custom = |it: &str| read_questions(it, QuestionBounds::CUSTOM_TOOL);
    assert!(custom(&with("options", json!([]))).is_ok());
    assert!(custom(&many(32)).is_ok());
    assert!(custom(&many(33)).is_err());
    assert!(custom(&with("options", labels(65))).is_err());
}

/// P30, O44 to O46: all questions are answered, with what fits; the input is kept byte for byte.
#[test]
fn answers_fit_their_questions() {
    let arguments = r#"{ "questions":[{"question":"Which \u0063olour?","multiSelect":true,
        "options":[{"label":"Red"},{"label":"Blue"}]},{"question":"Why?"}]} "#;
    let questions = read_questions(arguments, QuestionBounds::CUSTOM_TOOL).unwrap();
    let answers = |colour: Answer, why: Answer| {
        BTreeMap::from([
            ("Which colour?".to_owned(), colour),
            ("Why?".to_owned(), why),
        ])
    };
    let text = |it: &str| Answer::Text(it.to_owned());
    let choose =
        |labels: &[&str]| Answer::Selection(labels.iter().map(|it| (*it).to_owned()).collect());
    let told = |it: &BTreeMap<String, Answer>| answered_arguments(arguments, &questions, it);
    let told_all = told(&answers(choose(&["Red", "Blue"]), text(" as \"is\" "))).unwrap();
    let open = arguments.trim_end().strip_suffix('}').unwrap();
    let added = r#","answers":{"Which colour?":"Red, Blue","Why?":" as \"is\" "}}"#;
    assert_eq!(told_all, format!("{open}{added}"));
    for (colour, why, problem) in [
        (choose(&[]), text("so"), AnswerProblem::Empty),
        (choose(&["Green"]), text("so"), AnswerProblem::UnknownChoice),
        (choose(&["red"]), text("so"), AnswerProblem::UnknownChoice),
        (
            choose(&["Red", "Red"]),
            text("so"),
            AnswerProblem::TooManyChoices,
        ),
        (text("Green"), text("\n "), AnswerProblem::Empty),
        (text("Green"), choose(&["so"]), AnswerProblem::UnknownChoice),
        (
            text("Green"),
            text(&"s".repeat(16_001)),
            AnswerProblem::TooLong,
        ),
    ] {
        assert_eq!(told(&answers(colour, why)), Err(problem));
    }
    let single = one(json!({"question": "Why?", "options": [{"label": "a"}, {"label": "b"}]}));
    let one_choice = read_questions(&single, QuestionBounds::CLAUDE_CODE).unwrap();
    let both = BTreeMap::from([("Why?".to_owned(), choose(&["a", "b"]))]);
    let refused = answered_arguments(&single, &one_choice, &both);
    assert_eq!(refused, Err(AnswerProblem::TooManyChoices));
    for (key, problem) in [
        ("Why?", AnswerProblem::Missing),
        ("__proto__", AnswerProblem::NotAsked),
        ("Why? ", AnswerProblem::NotAsked),
    ] {
        let partial = BTreeMap::from([(key.to_owned(), text("so"))]);
        assert_eq!(told(&partial), Err(problem), "{key}");
    }
}
