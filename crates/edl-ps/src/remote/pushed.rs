//! What replicas answered to pushes.

use edl_wire::WireError;
use edl_wire::op::push::Outcome;

use crate::error::PsError;

/// The version and staleness that a push is answered with.
pub(super) type Pushed = (u64, u64);

/// Replica 0's version and the largest staleness.
pub(super) fn pushed_of<'o>(
    outcomes: impl IntoIterator<Item = &'o Outcome>,
) -> Result<Pushed, PsError> {
    let not_yet = || WireError::malformed("a push waits where no rounds are made");
    let pushed: Option<Vec<Pushed>> = outcomes.into_iter().map(Outcome::applied).collect();
    let pushed = pushed.ok_or_else(not_yet)?;
    let version = pushed.first().map_or(0, |(version, _)| *version);
    let staleness = pushed.iter().map(|(_, staleness)| *staleness).max();
    Ok((version, staleness.unwrap_or(0)))
}

/// The same for each of the last `count` pushes of frames; replica 0 has answered first.
pub(super) fn pushed_each(answers: &[Vec<Outcome>], count: usize) -> Result<Vec<Pushed>, PsError> {
    let of_push = |push| {
        answers
            .iter()
            .map(move |told| &told[told.len() - count + push])
    };
    (0..count).map(|push| pushed_of(of_push(push))).collect()
}
