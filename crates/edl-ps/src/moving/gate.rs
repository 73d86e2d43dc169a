//! Decides which requests enter a replica while a move holds it, without locks.
//!
//! `docs/designs/resharding.md` has the order of events, and the reason why these requests are
//! enough.

use std::collections::BTreeMap;

/// A minibatch of a task that would be applied, or left out.
pub(crate) type Update = (u64, u32);

/// The requests that may enter. Moves are numbered; a call about an earlier move has no effect.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// The last move that was over.
    over: u64,
    /// The move that holds it, and up to which minibatch each task is let in all the same.
    held: Option<(u64, BTreeMap<u64, u32>)>,
}

impl Gate {
    /// Let nothing in from now on; false if that move is over.
    pub(crate) fn hold(&mut self, number: u64) -> bool {
        let newest = self.held.as_ref().map_or(0, |(newest, _)| *newest);
        if number <= self.over || number < newest {
            return false;
        }
        if number > newest {
            self.held = Some((number, BTreeMap::new()));
        }
        true
    }

    /// Let in what other replicas have applied already; false if that move does not hold it.
    pub(crate) fn settle(&mut self, number: u64, limits: &[Update]) -> bool {
        match &mut self.held {
            Some((held, admitted)) if *held == number => {
                admitted.extend(limits.iter().copied());
                true
            }
            _ => false,
        }
    }

    /// Let everything in again, if that move or an earlier one holds it.
    pub(crate) fn release(&mut self, number: u64) {
        self.over = self.over.max(number);
        if self.held.as_ref().is_some_and(|(held, _)| *held <= number) {
            self.held = None;
        }
    }

    /// Whether a move holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether that move holds it.
    pub(crate) fn is_held_by(&self, number: u64) -> bool {
        self.held.as_ref().is_some_and(|(held, _)| *held == number)
    }

    /// Whether a request may come in now; `updates` of one that changes the watermarks of tasks.
    pub(crate) fn admits(&self, updates: &[Update]) -> bool {
        let Some((_, admitted)) = &self.held else {
            return true;
        };
        let is_there =
            |&(task, index): &Update| admitted.get(&task).is_some_and(|&end| index < end);
        !updates.is_empty() && updates.iter().all(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_gate_lets_in_what_others_have_applied_and_nothing_else() {
        let mut gate = Gate::default();
        assert!(gate.admits(&[]) && gate.admits(&[(1, 0)]));
        assert!(gate.hold(2));
        assert!(!gate.admits(&[]) && !gate.admits(&[(1, 0)]));
        assert!(gate.settle(2, &[(1, 3)]));
        assert!(gate.admits(&[(1, 2)]));
        assert!(gate.admits(&[(1, 2), (1, 0)]) && !gate.admits(&[(1, 2), (2, 0)]));
        assert!(!gate.admits(&[(1, 3)]) && !gate.admits(&[(2, 0)]) && !gate.admits(&[]));
        gate.release(2);
        assert!(gate.admits(&[]) && gate.admits(&[(2, 0)]));
    }

    #[test]
    fn what_comes_late_of_a_move_that_is_over_has_no_effect() {
        let mut gate = Gate::default();
        gate.release(4);
        assert!(!gate.hold(3) && !gate.hold(4));
        assert!(gate.admits(&[]));
        assert!(gate.hold(6));
        assert!(!gate.settle(5, &[(1, 9)]) && !gate.hold(5));
        gate.release(5);
        assert!(!gate.admits(&[]) && !gate.admits(&[(1, 0)]));
        gate.release(7);
        assert!(gate.admits(&[]));
    }
}
