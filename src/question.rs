//! Questions that an agent asks people (spec/core.md 15, spec/relvo.md 12): what is asked, and what
//! fits it as an answer.
//!
//! The shape is that of Claude Code's `AskUserQuestion` (captures `ask_user_inline`, CLI 2.1.316 and
//! 2.1.332): `{"questions": [{"question", "header", "options": [{"label", "description"}],
//! "multiSelect"}]}`, answered by the same object with `"answers"`, by the text of the question.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest text of a question, in bytes.
const QUESTION_BYTES_MAX: usize = 8_000;

/// The longest heading of a question, in bytes.
const HEADER_BYTES_MAX: usize = 200;

/// The longest label of an option, in bytes.
const LABEL_BYTES_MAX: usize = 400;

/// The longest description of an option, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 2_000;

/// The longest answer in a person's own words, in bytes.
pub const ANSWER_BYTES_MAX: usize = 16_000;

/// One question of a set. It is answered with one of its options (several, where it says so) or in the
/// person's own words. The texts are the model's: show them as text, never as markup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Question {
    /// What is asked; no two questions of a set ask the same.
    pub question: String,
    /// A heading of a few words.
    #[serde(default)]
    pub header: String,
    /// What may be chosen; no two have the same label.
    #[serde(default)]
    pub options: Vec<QuestionOption>,
    /// True when more than one option may be chosen.
    #[serde(default, rename = "multiSelect")]
    pub multi_select: bool,
}

/// What may be chosen as an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionOption {
    /// What the model is told when it is chosen.
    pub label: String,
    /// What it means.
    #[serde(default)]
    pub description: String,
    /// Something to look at, which nobody here could show.
    #[serde(default, skip_serializing)]
    preview: Option<Value>,
}

/// How many questions and options a set may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuestionBounds {
    questions_max: usize,
    options_min: usize,
    options_max: usize,
}

impl QuestionBounds {
    /// Of `AskUserQuestion` (O47).
    pub(crate) const CLAUDE_CODE: Self = Self {
        questions_max: 4,
        options_min: 2,
        options_max: 4,
    };

    /// Of a custom tool (P30).
    pub(crate) const CUSTOM_TOOL: Self = Self {
        questions_max: 32,
        options_min: 0,
        options_max: 64,
    };
}

/// Reads the questions in the input of a call; a set is taken whole or not at all.
///
/// # Errors
/// Why it cannot be asked, in fixed words: nothing of the input is in them (O47).
pub(crate) fn read_questions(
    arguments: &str,
    bounds: QuestionBounds,
) -> Result<Vec<Question>, &'static str> {
    let input: Map<String, Value> =
        serde_json::from_str(arguments).map_err(|_| "the input is no object")?;
    if input.contains_key("answers") {
        return Err("the input holds answers already");
    }
    let questions = input.get("questions").cloned().unwrap_or_default();
    let questions: Vec<Question> =
        serde_json::from_value(questions).map_err(|_| "the input is no set of questions")?;
    if questions.is_empty() || questions.len() > bounds.questions_max {
        return Err("the set has too few or too many questions");
    }
    if !are_distinct(questions.iter().map(|it| it.question.as_str())) {
        return Err("two questions are the same");
    }
    for question in &questions {
        check_question(question, bounds)?;
    }
    Ok(questions)
}

fn check_question(question: &Question, bounds: QuestionBounds) -> Result<(), &'static str> {
    let options = &question.options;
    if options.len() < bounds.options_min || options.len() > bounds.options_max {
        return Err("a question has too few or too many options");
    }
    if !are_distinct(options.iter().map(|it| it.label.as_str())) {
        return Err("two options of a question have the same label");
    }
    if options.iter().any(|it| it.preview.is_some()) {
        return Err("an option has a preview, which nobody could show");
    }
    let is_blank = |text: &str| text.trim().is_empty();
    if is_blank(&question.question) || options.iter().any(|it| is_blank(&it.label)) {
        return Err("a question or a label is blank");
    }
    let is_long = question.question.len() > QUESTION_BYTES_MAX
        || question.header.len() > HEADER_BYTES_MAX
        || (options.iter()).any(|it| {
            it.label.len() > LABEL_BYTES_MAX || it.description.len() > DESCRIPTION_BYTES_MAX
        });
    if is_long {
        return Err("a text of a question is too long");
    }
    Ok(())
}

fn are_distinct<'a>(texts: impl Iterator<Item = &'a str>) -> bool {
    let mut seen = BTreeSet::new();
    let mut texts = texts;
    texts.all(|it| seen.insert(it))
}

/// An answer to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "clients write it; there are no other ways to answer"
)]
pub enum Answer {
    /// The person's own words, as they are.
    Text(String),
    /// The labels of the chosen options: one, or several where the question allows it.
    Selection(Vec<String>),
}

/// Why answers do not fit their questions. Nothing of an answer is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerProblem {
    /// A question of the set has no answer: they are answered all or not at all (O46).
    #[error("a question has no answer")]
    Missing,
    /// Something is answered that was not asked.
    #[error("an answer has no question")]
    NotAsked,
    /// No option is chosen, or a text is blank.
    #[error("an answer is empty")]
    Empty,
    /// One option is to be chosen, or one is chosen twice.
    #[error("an answer chooses too many options")]
    TooManyChoices,
    /// The question has no such option.
    #[error("an answer chooses an option that there is not")]
    UnknownChoice,
    /// A text is longer than [`ANSWER_BYTES_MAX`].
    #[error("an answer is longer than 16,000 bytes")]
    TooLong,
}

/// Returns the input that a call with questions runs with: its own, byte for byte, with the answers
/// added by the text of each question (O44, O45).
pub(crate) fn answered_arguments(
    arguments: &str,
    questions: &[Question],
    answers: &BTreeMap<String, Answer>,
) -> Result<String, AnswerProblem> {
    let is_asked = |text: &String| questions.iter().any(|it| it.question == *text);
    if !answers.keys().all(is_asked) {
        return Err(AnswerProblem::NotAsked);
    }
    let mut told = Vec::new();
    for question in questions {
        let answer = answers
            .get(&question.question)
            .ok_or(AnswerProblem::Missing)?;
        let key = Value::from(question.question.as_str());
        let text = Value::from(told_text(question, answer)?);
        told.push(format!("{key}:{text}"));
    }
    let object = arguments.trim_end();
    let open = object.strip_suffix('}').unwrap_or(object);
    Ok(format!("{open},\"answers\":{{{}}}}}", told.join(",")))
}

/// Returns what the model reads: labels joined by a comma, or the text as it is.
fn told_text(question: &Question, answer: &Answer) -> Result<String, AnswerProblem> {
    match answer {
        Answer::Text(text) if text.trim().is_empty() => Err(AnswerProblem::Empty),
        Answer::Text(text) if text.len() > ANSWER_BYTES_MAX => Err(AnswerProblem::TooLong),
        Answer::Text(text) => Ok(text.clone()),
        Answer::Selection(labels) => {
            let is_one = |label: &String| question.options.iter().any(|it| it.label == *label);
            if labels.is_empty() {
                return Err(AnswerProblem::Empty);
            }
            if !labels.iter().all(is_one) {
                return Err(AnswerProblem::UnknownChoice);
            }
            let is_several = labels.len() > 1 && !question.multi_select;
            if is_several || !are_distinct(labels.iter().map(String::as_str)) {
                return Err(AnswerProblem::TooManyChoices);
            }
            Ok(labels.join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
