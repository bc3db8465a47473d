//! Messages: what is taken, and in which order it is answered (G6).

use super::*;
use crate::session::{MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX};

/// G6: a session answers its messages one turn at a time, in the order in which it took them.
#[test]
fn messages_become_turns_in_order() {
    let mut world = World::new();
    assert_eq!(world.state.status(), SessionStatus::Idle);
    let reply = world.try_send("one").unwrap();
    let first = MessageId::new(1);
    assert_eq!(
        reply,
        Reply::MessageAccepted {
            message_id: first,
            queued: false
        }
    );
    for (number, text) in [(2, "two"), (3, "three")] {
        assert_eq!(
            world.try_send(text).unwrap(),
            Reply::MessageAccepted {
                message_id: MessageId::new(number),
                queued: true
            }
        );
    }
    world.answer("re one");
    for answer in ["re two", "re three"] {
        let due = due_steps(&world.state);
        let next = world.state.queue[0].message_id;
        assert_eq!(due, [DueStep::StartTurn { message_id: next }]);
        assert_eq!(world.state.due_at(), Some(Timestamp(0)));
        assert_eq!(world.start_turn(), Reply::Done);
        world.answer(answer);
    }
    assert_eq!(world.state.status(), SessionStatus::Idle);
    let expected = ["one", "re one", "two", "re two", "three", "re three"];
    let texts: Vec<_> = world.texts().into_iter().map(|it| it.1).collect();
    assert_eq!(texts, expected);
}

/// G6: only the first message starts a turn, only once, and never beside another turn.
#[test]
fn a_turn_starts_with_the_first_message_alone() {
    let mut world = World::started();
    world.send("two");
    world.send("three");
    let start = |number| Input::StartTurn {
        message_id: MessageId::new(number),
        text: "x".to_owned(),
    };
    assert_eq!(world.apply(start(2)).unwrap(), Reply::Superseded);
    world.answer("re hello");
    let before = world.state.clone();
    for wrong in [1, 3, 9] {
        assert_eq!(world.apply(start(wrong)).unwrap(), Reply::Superseded);
    }
    assert_eq!(world.state, before);
    assert_eq!(world.start_turn(), Reply::Done);
    assert_eq!(world.apply(start(2)).unwrap(), Reply::Superseded);
    assert_eq!(world.apply(start(3)).unwrap(), Reply::Superseded);
}

/// G6: between two turns a message goes behind those that wait, not before them.
#[test]
fn a_message_between_two_turns_waits_behind_the_others() {
    let mut world = World::started();
    world.send("two");
    world.answer("re hello");
    let reply = world.try_send("three").unwrap();
    assert_eq!(
        reply,
        Reply::MessageAccepted {
            message_id: MessageId::new(3),
            queued: true
        }
    );
    world.start_turn();
    assert_eq!(world.turn().message_id, MessageId::new(2));
}

/// N15: a text is blank when Python's `str.isspace` says so, or when it is empty.
#[test]
fn white_space_alone_is_no_message() {
    let blank = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\
        \u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\
        \u{202f}\u{205f}\u{3000}";
    let mut world = World::new();
    let before = world.state.clone();
    for text in ["", blank] {
        assert_eq!(refused(world.try_send(text)), Refusal::BlankText);
    }
    for it in (0..=0x3100).filter_map(char::from_u32) {
        let is_blank = reduce(&world.state, send(&it.to_string()), START).is_err();
        assert_eq!(is_blank, blank.contains(it), "{:x}", u32::from(it));
    }
    assert_eq!(world.state, before);
    world.send("\u{3000}x");
}

/// A text over the limit is refused whole; one at the limit is taken.
#[test]
fn a_message_has_a_longest_length() {
    let mut world = World::new();
    let longest = "x".repeat(MESSAGE_BYTES_MAX);
    let refusal = refused(world.try_send(&format!("{longest}x")));
    assert_eq!(
        refusal,
        Refusal::TextTooLong {
            bytes: MESSAGE_BYTES_MAX + 1
        }
    );
    world.send(&longest);
}

/// The queue is bounded by number and by size, and has room again when a turn has ended.
#[test]
fn a_full_queue_takes_no_message_until_a_turn_ends() {
    let mut world = World::started();
    for _ in 0..QUEUE_MESSAGES_MAX {
        world.send("x");
    }
    assert_eq!(refused(world.try_send("x")), Refusal::QueueFull);
    world.answer("re hello");
    assert_eq!(refused(world.try_send("x")), Refusal::QueueFull);
    world.start_turn();
    world.send("x");

    let mut world = World::started();
    let half = "x".repeat(usize::try_from(QUEUE_BYTES_MAX / 2).unwrap());
    world.send(&half);
    world.send(&half);
    assert_eq!(refused(world.try_send("x")), Refusal::QueueFull);
}

fn send(text: &str) -> Input {
    Input::SendUserMessage {
        text: text.to_owned(),
    }
}
