//! Lives that end otherwise than by the death of the worker alone.

use std::sync::Arc;
use std::time::Duration;

use abide::store::StoredSession;
use abide::testing::faults::{CrashPoint, CrashingStore};

use super::super::point::Point;
use super::{Case, LIMIT, LifeEnd};
use crate::support::patience::settles;

impl Case<'_> {
    /// Lets one worker stand still beside a commit, another one finish, and the first one go on
    /// (G8): nothing of it is stored any more, and its process ends.
    pub(crate) async fn stall(&mut self, at: CrashPoint) {
        self.points.push(format!("asleep {}", Point::Commit(at)));
        let inner = Arc::clone(&self.world.store);
        let store = Arc::new(CrashingStore::new(inner, Some(at)));
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        let mut stalled = store.crashed();
        tokio::select! {
            biased;
            reached = stalled.wait_for(|it| *it) => drop(reached.expect("the store is there")),
            () = self.run_to_end() => return,
        }
        let engine = self.world.leave_engine();
        self.deaths += 1;
        self.look_at_the_dead(None).await;
        if self.life(None).await != LifeEnd::Done {
            return;
        }
        self.is_free().await;
        if self.setting.is_live() {
            // Its process waits for a next message.
            self.world.shut_down().await;
        }
        let content = |it: StoredSession| (it.revision, it.state, it.head);
        let before = content(self.stored().await);
        let starts = self.world.effects.starts() + self.cli().effects().len();
        store.wake();
        let cli = self.cli();
        if !self.fenced_processes_end().await {
            self.problems
                .push("the process of a fenced worker goes on".to_owned());
        }
        // What is still under way in the first worker has its time.
        settles(|| false).await;
        if self.world.effects.starts() + cli.effects().len() != starts {
            self.problems
                .push("a fenced worker started a call".to_owned());
        }
        if content(self.stored().await) != before {
            self.problems
                .push("a fenced worker changed what is stored".to_owned());
        }
        drop(engine);
    }

    /// One that had its answer waits for a next message that does not come, as long as any.
    async fn fenced_processes_end(&self) -> bool {
        let cli = self.cli();
        let ended = settles(|| cli.running() == 0).await;
        if ended || !self.setting.is_live() {
            return ended;
        }
        let window = self.world.session_options.live_window + Duration::from_secs(5);
        let end = cli.wait_until(|_| cli.running() == 0);
        tokio::time::timeout(window, end).await.is_ok()
    }

    /// Lets the CLI die beside a commit, and its worker live; false when no CLI runs then.
    pub(crate) async fn kill_cli(&mut self, at: CrashPoint) -> bool {
        self.points.push(format!("the CLI {}", Point::Commit(at)));
        let inner = Arc::clone(&self.world.store);
        let store = Arc::new(CrashingStore::new(inner, Some(at)));
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        let mut stalled = store.crashed();
        tokio::select! {
            biased;
            reached = stalled.wait_for(|it| *it) => drop(reached.expect("the store is there")),
            () = self.run_to_end() => return false,
        }
        if self.cli().running() == 0 {
            return false;
        }
        self.cli().kill_running();
        store.wake();
        if tokio::time::timeout(LIMIT, self.run_to_end())
            .await
            .is_err()
        {
            self.problems.push("it never came to its end".to_owned());
        }
        true
    }
}
