//! Many kills in one turn, through the engine: a turn that makes progress outlives them, a poisonous
//! one does not.

use abide::failure::FailureClass;
use abide::ids::SessionId;
use abide::record::MessageRole;
use abide::session::LOST_ATTEMPTS_MAX;
use abide::store::SessionStatus;
use abide::testing::faults::CrashPoint;

use crate::crash_points::SIDES;
use crate::crash_points::case::{Case, LifeEnd, Setting};
use crate::crash_points::check::differences;
use crate::crash_points::point::Point;
use crate::crash_points::reference::{APPROVED, Reference};
use crate::crash_points::undisturbed;
use crate::support::counted::{Line, LineAt};

const KILLS: usize = 50;

/// Writes that run once and need no person, each in a reply of its own.
fn many_replies() -> Reference {
    let note = |order: usize| format!(r#"note {{"order_id":"{order}"}}"#);
    let later: String = (2..=KILLS)
        .map(|it| format!(" ;; then {}", note(it)))
        .collect();
    let prompt = format!("script: call {}{later}", note(1));
    Reference {
        name: "many replies",
        // A reference is a constant elsewhere.
        messages: vec![&*prompt.leak()].leak(),
        free_tools: &["note"],
        ..APPROVED
    }
}

/// G1, G3, G7: fifty kills in one turn that makes progress: it finishes, and nothing runs twice.
#[tokio::test(start_paused = true)]
async fn a_turn_that_makes_progress_outlives_fifty_kills() {
    let reference = many_replies();
    let plain = undisturbed(&reference, Setting::LAGGING).await;
    let mut case = Case::start(&reference, Setting::LAGGING).await;
    for kill in 0..KILLS {
        // Beside the commit that ends a call: a grant, the reply, the call's start, its end.
        let point = CrashPoint {
            commit: 4,
            side: SIDES[kill % SIDES.len()],
        };
        assert_eq!(case.life(Some(Point::Commit(point))).await, LifeEnd::Died);
    }
    assert_eq!(case.life(None).await, LifeEnd::Done);
    let run = case.finish().await;
    assert_eq!(run.deaths, KILLS);
    assert_eq!(differences(&plain, &run), Vec::<String>::new());
    // Those that were killed beside their end, on the side where it was not stored.
    let unknown = run.fates.len();
    println!("{KILLS} kills in one turn: {unknown} outcomes unknown");
    assert!((1..=KILLS / 2).contains(&unknown), "{unknown}");
}

/// G7: a turn whose attempts are all lost ends with a note, and the session goes on.
#[tokio::test(start_paused = true)]
async fn a_poisonous_turn_ends_with_a_note_after_a_hundred_kills() {
    let reference = Reference {
        name: "a poisonous turn",
        messages: &["script: say hello"],
        ..APPROVED
    };
    let mut case = Case::start(&reference, Setting::LIVE).await;
    for launch in 0..LOST_ATTEMPTS_MAX as usize {
        let line = Line::Sent(1);
        let point = Point::Line(LineAt { launch, line });
        assert_eq!(case.life(Some(point)).await, LifeEnd::Died);
    }
    assert_eq!(case.life(None).await, LifeEnd::Done);
    let session = SessionId::new("crashed").expect("a session id");
    let snapshot = case.world.snapshot(&session).await;
    assert_eq!(snapshot.status, SessionStatus::Idle);
    let failure = snapshot.last_failure.expect("the turn failed");
    assert_eq!(failure.class, FailureClass::AttemptsLost);
    assert_eq!(case.world.starts(), LOST_ATTEMPTS_MAX as usize);
    let note = "[The previous turn failed (attempts_lost) and its answer is lost.]";
    let last = snapshot
        .messages
        .last()
        .map(|it| (it.role, it.text.as_str()));
    assert_eq!(last, Some((MessageRole::Note, note)));
    case.world.send(&session, "script: recall").await;
    case.world.wait_for_turns(&session, 2).await;
    let recalled = format!("recalled: {} | {note}", reference.messages[0]);
    assert_eq!(case.world.last_answer(&session).await, recalled);
}
