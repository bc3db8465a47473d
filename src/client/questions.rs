//! Answers to the questions that a call asks.

use std::collections::BTreeMap;

use super::{AgentSessionClient, ClientError, ResolveInterrupt};
use crate::ids::{InterruptId, RequestId, SessionId};
use crate::question::{Answer, QuestionBounds, answered_arguments, read_questions};
use crate::session::{Refusal, ResolvedArguments};
use crate::store::{RowKey, RowKind};

/// The answers to all questions of an interrupt.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AnswerQuestion {
    answer: ResolveInterrupt,
    answers: BTreeMap<String, Answer>,
}

impl AnswerQuestion {
    /// Begins to answer this interrupt.
    #[must_use]
    pub fn new(interrupt_id: InterruptId) -> Self {
        Self {
            answer: ResolveInterrupt::approve(interrupt_id),
            answers: BTreeMap::new(),
        }
    }

    /// Answers a question, named by its text, in the person's own words.
    #[must_use]
    pub fn with_text(self, question: impl Into<String>, text: impl Into<String>) -> Self {
        self.with(question, Answer::Text(text.into()))
    }

    /// Answers a question, named by its text, by the labels of options.
    #[must_use]
    pub fn with_selection(
        self,
        question: impl Into<String>,
        labels: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let labels = labels.into_iter().map(Into::into).collect();
        self.with(question, Answer::Selection(labels))
    }

    fn with(mut self, question: impl Into<String>, answer: Answer) -> Self {
        self.answers.insert(question.into(), answer);
        self
    }

    /// Says who answered; kept with the record.
    #[must_use]
    pub fn answered_by(mut self, person: impl Into<String>) -> Self {
        self.answer = self.answer.decided_by(person);
        self
    }

    /// Names the request: the same request again gets the same answer.
    #[must_use]
    pub fn with_request_id(mut self, request_id: RequestId) -> Self {
        self.answer = self.answer.with_request_id(request_id);
        self
    }
}

impl AgentSessionClient {
    /// Answers the questions of an interrupt, all of them at once; false when these very answers had
    /// been given before and nothing changed. The call runs with them, and the model reads what the
    /// tool makes of them. To decline, reject it
    /// ([`ResolveInterrupt::reject`]).
    ///
    /// # Errors
    /// [`ClientError::NoSession`]; [`ClientError::Refused`] as for
    /// [`resolve_interrupt`](Self::resolve_interrupt), and with [`Refusal::AsksNoQuestions`] for an
    /// approval and [`Refusal::AnswersDoNotFit`] when a question is not answered or an answer is not
    /// one of its options: then nothing was answered; [`ClientError::RequestConflict`]; and what the
    /// store reports.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; the same call again finds out.
    pub async fn answer_question(
        &self,
        session: &SessionId,
        answer: AnswerQuestion,
    ) -> Result<bool, ClientError> {
        let AnswerQuestion {
            mut answer,
            answers,
        } = answer;
        let interrupt_id = answer.resolution.interrupt_id.clone();
        let keys = [RowKey {
            kind: RowKind::Arguments,
            key: interrupt_id.as_str().to_owned(),
        }];
        // What a call asked with is never written again.
        let row = self.store.read_rows(session, &keys).await?.pop().flatten();
        // A session without such a call refuses the answer below.
        if let Some(arguments) = row.and_then(|it| String::from_utf8(it).ok()) {
            let questions = read_questions(&arguments, QuestionBounds::CUSTOM_TOOL)
                .map_err(|_| Refusal::AsksNoQuestions {
                    interrupt_id: interrupt_id.clone(),
                })
                .map_err(ClientError::Refused)?;
            let answered = answered_arguments(&arguments, &questions, &answers)
                .map_err(|problem| Refusal::AnswersDoNotFit {
                    interrupt_id,
                    problem,
                })
                .map_err(ClientError::Refused)?;
            answer.resolution.arguments = ResolvedArguments::Answered(answered);
        }
        self.resolve_interrupt(session, answer).await
    }
}
