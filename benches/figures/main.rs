//! What the crate costs, in numbers, each beside its **raw twin**: the least that any host must do
//! for the same, measured in the same run, so that a slow or busy machine shows in both.
//!
//! `cargo bench --bench figures -- [NAME…]` prints `figure NAME VALUE UNIT`, one a line; without a
//! name, all of them. `--quick` runs everything once and small: it shows that the figures can be
//! taken, and its numbers mean nothing.
//!
//! | figures | goal |
//! | --- | --- |
//! | [`turn`]: CPU of the host per turn | raw + 1.2 ms |
//! | [`decode`]: lines and bytes of the CLI decoded | at least 400,000 lines/s |
//! | [`deliver`]: deltas that reach a subscriber | at least 250,000 lines/s |
//! | [`commit`]: durable commits, alone and 64 at once | at most 1.3 times raw |
//! | [`gated`]: from an approval to the end of the turn, on the fake and the real CLI | raw + 5 ms |
//! | [`gated`]: a message to a warm process | at most 20 % of one that starts a process |
//! | [`stored`]: the database after a session of 200 turns | at most 0.2 of what the CLI mirrored |
//! | [`resume`]: our own part of resuming from 10,000 entries | at most 60 ms |
//! | [`parked`]: memory of 10,000 sessions that wait for people | at most 20 MB |
//! | [`inbox`]: opening a store with 10,000 parked sessions, engine and inbox | at most 2,000 ms |
//! | [`inbox`]: approvals committed by 64 clients | at least 1,000/s |
//! | [`inbox`]: from an approval to the start of the handler, same process | p99 at most 25 ms |
//! | [`sessions`]: sessions of five Steps, 200 at once | at least 0.5 times raw |
//! | [`events`]: from a message to 100 subscribers, same process | p95 at most 10 ms |
//! | [`tail`]: the end of a session of 100,000 entries | at most 50 ms |

mod commit;
mod decode;
mod deliver;
mod events;
mod gated;
mod inbox;
mod parked;
mod process;
mod recording;
mod report;
mod resume;
mod scripted;
mod sessions;
mod stored;
mod tail;
mod turn;

use std::process::ExitCode;

use report::{Effort, Figure, Group};

const GROUPS: [Group; 13] = [
    turn::GROUP,
    decode::GROUP,
    deliver::GROUP,
    commit::GROUP,
    gated::GROUP,
    gated::REAL_GROUP,
    stored::GROUP,
    resume::GROUP,
    parked::GROUP,
    inbox::GROUP,
    sessions::GROUP,
    events::GROUP,
    tail::GROUP,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, process::CHILD, job, database] =
        &arguments.iter().map(|it| &**it).collect::<Vec<_>>()[..]
    {
        return process::run_child(job, std::path::Path::new(database));
    }
    let mut effort = Effort::Full;
    let mut names = Vec::new();
    for argument in arguments.into_iter().skip(1) {
        match argument.as_str() {
            "--quick" => effort = Effort::Quick,
            // Cargo passes it to every bench.
            "--bench" => {}
            _ => names.push(argument),
        }
    }
    let is_known = |name: &String| GROUPS.iter().any(|it| it.names.contains(&name.as_str()));
    if let Some(unknown) = names.iter().find(|it| !is_known(it)) {
        report::complain(unknown, GROUPS.iter().flat_map(|it| it.names));
        return ExitCode::FAILURE;
    }
    for group in GROUPS {
        let is_wanted = |name: &str| names.is_empty() || names.iter().any(|it| it == name);
        if group.names.iter().any(|it| is_wanted(it)) {
            // The whole group, because a figure says little without its twin.
            let figures = (group.run)(effort);
            let printed: Vec<&str> = figures.iter().map(|it| it.name).collect();
            assert_eq!(printed, group.names, "a group takes the figures it names");
            figures.iter().for_each(Figure::print);
        }
    }
    ExitCode::SUCCESS
}
