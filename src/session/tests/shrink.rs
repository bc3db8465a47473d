//! The smallest history that still fails.

/// How often a failing history is played again to find a smaller one.
const PLAYS_MAX: usize = 2_000;

/// Leaves out whatever is not needed for a failure: large parts first, then single ones.
pub(super) fn shrink<T: Clone>(mut items: Vec<T>, fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut plays = 0;
    let mut part = items.len().div_ceil(2);
    while part > 0 {
        let mut start = 0;
        while start < items.len() && plays < PLAYS_MAX {
            plays += 1;
            let end = (start + part).min(items.len());
            let fewer = [&items[..start], &items[end..]].concat();
            if fails(&fewer) {
                items = fewer;
            } else {
                start = end;
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    items
}

/// What is needed stays, and nothing else.
#[test]
fn a_failing_history_is_made_small() {
    let needed = [13, 57, 58];
    let fails = |it: &[u32]| needed.iter().all(|one| it.contains(one));
    assert_eq!(shrink((0..100).collect(), fails), needed);
}
