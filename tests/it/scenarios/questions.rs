//! The agent asks people, and goes on with what they answer (N17, O42 to O50).

use abide::client::{AnswerQuestion, ClientError, Refusal, ResolveInterrupt};
use abide::policy::{ToolEffect, ToolPolicies, ToolPolicy};
use abide::question::AnswerProblem;
use abide::record::{CallStatus, ToolOutcome};
use abide::store::InterruptFilter;

use super::Scenario;
use super::wishes::park_at_once;
use crate::support::World;

pub(crate) const QUESTIONS: &[Scenario] = &[
    Scenario {
        name: "a question answered live",
        run: |it| Box::pin(a_question_answered(it, false)),
        is_central: true,
    },
    Scenario {
        name: "a question answered while parked",
        run: |it| Box::pin(a_question_answered(it, true)),
        is_central: true,
    },
    Scenario {
        name: "a question of a custom tool",
        run: |it| Box::pin(a_question_of_a_custom_tool(it)),
        is_central: false,
    },
    Scenario {
        name: "a question declined",
        run: |it| Box::pin(a_question_declined(it)),
        is_central: true,
    },
    Scenario {
        name: "a question to nobody",
        run: |it| Box::pin(a_question_to_nobody(it)),
        is_central: true,
    },
];

const ASK: &str = r#"script: call AskUserQuestion {"questions":[{"question":"Which colour?","header":"Colour","multiSelect":false,"options":[{"label":"Red","description":"warm"},{"label":"Blue","description":"cold"}]},{"question":"Which sizes?","header":"Size","multiSelect":true,"options":[{"label":"S","description":"small"},{"label":"L","description":"large"}]}]}"#;

async fn offer_questions(world: &mut World) {
    world.tools.push("AskUserQuestion");
    world.policies = ToolPolicies::new().with("AskUserQuestion", ToolPolicy::questions());
    world.shut_down().await;
    world.start_engine().await;
}

/// N17, O43 to O46: the questions are there to be read, all of them are answered at once or none, and the
/// model goes on with the answers in the same turn.
async fn a_question_answered(world: &mut World, parked: bool) {
    if parked {
        park_at_once(world).await;
    }
    offer_questions(world).await;
    let session = world.start_session("asked", ASK).await;
    let open = world.wait_for_interrupt(&session).await;
    if parked {
        world.wait_until_parked(&session).await;
    }
    let asked: Vec<&str> = open.questions.iter().map(|it| &*it.question).collect();
    assert_eq!(asked, ["Which colour?", "Which sizes?"]);
    assert_eq!(open.questions[0].options[1].description, "cold");
    assert!(open.questions[1].multi_select);
    let client = world.client();
    let filter = InterruptFilter::default();
    let inbox = client.list_interrupts(&filter, 10).await;
    assert!(
        inbox.expect("the inbox is read").rows[0]
            .interrupt
            .asks_questions
    );

    let id = open.interrupt_id.clone();
    let approved = client.resolve_interrupt(&session, ResolveInterrupt::approve(id.clone()));
    let told = approved.await.expect_err("there are no answers");
    let is_refused = |told: &ClientError| matches!(told, ClientError::Refused(_));
    assert!(is_refused(&told), "{told}");
    let partial = AnswerQuestion::new(id.clone()).with_text("Which colour?", "Green, please");
    let told = client.answer_question(&session, partial.clone()).await;
    let problem = AnswerProblem::Missing;
    match told.expect_err("one answer is missing") {
        ClientError::Refused(Refusal::AnswersDoNotFit { problem: it, .. }) => {
            assert_eq!(it, problem)
        }
        other => panic!("{other}"),
    }
    let answers = partial
        .with_selection("Which sizes?", ["S", "L"])
        .answered_by("ann");
    let taken = client.answer_question(&session, answers.clone()).await;
    assert!(taken.expect("the answers are taken"));
    let again = client.answer_question(&session, answers).await;
    assert!(!again.expect("the answers are the same"));
    world.wait_for_turns(&session, 1).await;

    let told = world.last_answer(&session).await;
    assert!(
        told.contains(r#""Which colour?"="Green, please""#),
        "{told}"
    );
    assert!(told.contains(r#""Which sizes?"="S, L""#), "{told}");
    assert!(!told.contains("changed the input"), "{told}");
    let ToolOutcome::Succeeded { output } = world.outcome(&session, &open).await else {
        panic!("the question is answered");
    };
    assert_eq!(told, format!("AskUserQuestion: {output}"));
}

/// N17: a custom tool may ask as well; its handler gets the answers with its input.
async fn a_question_of_a_custom_tool(world: &mut World) {
    world.policies = ToolPolicies::new().with("refund", ToolPolicy::questions());
    world.shut_down().await;
    world.start_engine().await;
    let asks = r#"script: call refund {"order_id":"7","questions":[{"question":"Sure?"}]}"#;
    let session = world.start_session("custom", asks).await;
    let open = world.wait_for_interrupt(&session).await;
    assert_eq!(open.questions[0].question, "Sure?");
    let answers = AnswerQuestion::new(open.interrupt_id.clone()).with_text("Sure?", "yes");
    let taken = world.client().answer_question(&session, answers).await;
    assert!(taken.expect("the answers are taken"));
    world.wait_for_turns(&session, 1).await;
    let told = world.last_answer(&session).await;
    assert_eq!(told, "refund: order 7 is refunded");
    assert_eq!(world.effects.lines().len(), 1);
}

/// O31, L26: who declines says so, and the model reads it.
async fn a_question_declined(world: &mut World) {
    offer_questions(world).await;
    let session = world.start_session("declined", ASK).await;
    world.reject(&session, "decide yourself").await;
    world.wait_for_turns(&session, 1).await;
    let told = world.last_answer(&session).await;
    assert_eq!(
        told,
        "AskUserQuestion: The user rejected this call: decide yourself"
    );
}

/// O42, O50: nobody is asked without a policy for questions; approvals go on as ever.
async fn a_question_to_nobody(world: &mut World) {
    world.tools.push("AskUserQuestion");
    world.policies = ToolPolicies::new().with_default_effect(ToolEffect::Unclassified);
    world.shut_down().await;
    world.start_engine().await;
    let session = world.start_session("nobody", ASK).await;
    world.wait_for_turns(&session, 1).await;
    let told = world.last_answer(&session).await;
    assert!(told.contains("Ask in your reply"), "{told}");
    world
        .send(&session, r#"script: call Bash {"command":"true"}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    assert_eq!(open.tool_name, "Bash");
    assert!(open.questions.is_empty());
    world.reject(&session, "no").await;
    world.wait_for_turns(&session, 2).await;
    assert_eq!(
        world.outcome(&session, &open).await.status(),
        CallStatus::Rejected
    );
}
