//! A replica that goes over to another number of replicas, while it serves.
//!
//! It serves one [`Layout`] at a time, with a store of its own. A move fills a second store beside
//! it, from what all replicas of the layout before hold. Then it serves that one, and tells those
//! who speak of the layout before where everything is now. A replica that begins with a move serves
//! nothing before; one that has no part of the next layout serves nothing afterwards.

use std::sync::Arc;

use edl_store::{ModelSpec, Store};

use self::gate::Gate;
use crate::error::PsError;

pub(crate) use self::gate::Update;
pub(crate) use self::hosted::{Hosted, Inside, Near, Served};

mod copying;
mod gate;
mod hosted;
#[cfg(test)]
mod simulation;
mod steps;

/// The part of the model that a replica holds. Layouts are numbered in the order of the attempted
/// moves, even of those that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its number.
    pub number: u64,
    /// This replica.
    pub replica: u32,
    /// How many there are.
    pub num_replicas: u32,
}

/// Whether a request is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// It is.
    Now,
    /// A move holds it: the same is to be asked again.
    Later,
    /// It was asked of a layout that is over; where everything is now.
    Elsewhere(String),
}

/// A store that is to be served under the next layout.
struct Next {
    layout: Layout,
    store: Arc<Store>,
    is_ready: bool,
}

/// The store that one process serves, and the store that it will serve next.
pub struct Host {
    /// The layout that is served, or was served last.
    layout: Layout,
    store: Option<Arc<Store>>,
    gate: Gate,
    next: Option<Next>,
    /// Moves up to this one are over.
    over: u64,
    /// The present addresses, for clients of an earlier layout.
    elsewhere: String,
}

impl Host {
    /// A replica that serves a store; `None` for one that begins with a move.
    pub fn new(store: Option<Arc<Store>>, layout: Layout) -> Self {
        Self {
            layout,
            store,
            gate: Gate::default(),
            next: None,
            over: layout.number,
            elsewhere: String::new(),
        }
    }

    /// Returns the served store.
    ///
    /// # Errors
    /// The replica serves nothing: a move has not ended, or the replica has no part of the layout.
    pub fn store(&self) -> Result<&Arc<Store>, PsError> {
        let nothing = || PsError::Invalid("this replica has no part of the model now".to_owned());
        self.store.as_ref().ok_or_else(nothing)
    }

    /// The layout that is served.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether a move holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.gate.is_held()
    }

    /// Whether a request may be done now that was made for a layout; `updates` are those that it
    /// would make.
    pub fn admits(&self, layout: u64, updates: &[Update]) -> Entrance {
        if layout < self.layout.number || (self.store.is_none() && !self.elsewhere.is_empty()) {
            return Entrance::Elsewhere(self.elsewhere.clone());
        }
        if layout > self.layout.number || self.store.is_none() || !self.gate.admits(updates) {
            return Entrance::Later;
        }
        Entrance::Now
    }

    // --- a move, in the order of its steps ---------------------------------------------------------

    /// Begin to fill a store for the next layout; again for the same one changes nothing.
    ///
    /// # Errors
    /// That move is over, or the model cannot be stored.
    pub fn begin(
        &mut self,
        layout: Layout,
        model: &str,
        is_restored: bool,
        num_rows: &[u64],
    ) -> Result<(), PsError> {
        self.check_open(layout.number)?;
        if self.next.as_ref().is_some_and(|next| next.layout == layout) {
            return Ok(());
        }
        let model = ModelSpec::from_json(model)?;
        let Layout {
            replica,
            num_replicas,
            ..
        } = layout;
        let store = Store::to_be_filled(model, is_restored, replica, num_replicas, num_rows)?;
        self.next = Some(Next {
            layout,
            store: Arc::new(store),
            is_ready: false,
        });
        Ok(())
    }

    /// The store that is being filled for a layout.
    ///
    /// # Errors
    /// None is, for that layout.
    pub fn filled(&self, number: u64) -> Result<Arc<Store>, PsError> {
        match &self.next {
            Some(next) if next.layout.number == number && !next.is_ready => Ok(next.store.clone()),
            _ => Err(PsError::Invalid(format!(
                "no store is being filled for layout {number}; has that move been given up?"
            ))),
        }
    }

    /// Let nothing in from now on.
    ///
    /// Args: `hold` counts the times that a move holds the replicas.
    ///
    /// # Errors
    /// That move is over.
    pub fn hold(&mut self, number: u64, hold: u64) -> Result<(), PsError> {
        self.check_open(number)?;
        if self.gate.hold(hold_of(number, hold)) {
            return Ok(());
        }
        Err(over(number))
    }

    /// Check that it is held so.
    ///
    /// # Errors
    /// It is not: it was let go since, or was never held.
    pub(crate) fn check_held(&self, number: u64, hold: u64) -> Result<(), PsError> {
        if self.gate.is_held_by(hold_of(number, hold)) {
            return Ok(());
        }
        Err(over(number))
    }

    /// Let in what other replicas have applied already.
    ///
    /// # Errors
    /// It is not held by that.
    pub fn settle(&mut self, number: u64, hold: u64, limits: &[Update]) -> Result<(), PsError> {
        if self.gate.settle(hold_of(number, hold), limits) {
            return Ok(());
        }
        Err(over(number))
    }

    /// Let everything in again.
    pub fn release(&mut self, number: u64, hold: u64) {
        self.gate.release(hold_of(number, hold));
    }

    /// The store that has been filled has all that there is, marks too.
    ///
    /// # Errors
    /// No store is being filled for that layout.
    pub fn ready(&mut self, number: u64) -> Result<(), PsError> {
        self.filled(number)?;
        if let Some(next) = &mut self.next {
            next.is_ready = true;
        }
        Ok(())
    }

    /// Serve the next layout, or nothing if this replica has no part of it; `elsewhere` tells
    /// others where everything is. Again for the same one changes nothing.
    ///
    /// # Errors
    /// The store for that layout is not ready.
    pub fn switch(&mut self, number: u64, leaves: bool, elsewhere: &str) -> Result<(), PsError> {
        if number <= self.layout.number {
            return Ok(());
        }
        let is_it = |next: &mut Next| next.layout.number == number && next.is_ready;
        let next = self.next.take_if(is_it);
        if next.is_none() && !leaves {
            return Err(PsError::Invalid(format!(
                "layout {number} is to be served, and its store is not ready here"
            )));
        }
        self.layout = next.as_ref().map_or(
            Layout {
                number,
                ..self.layout
            },
            |next| next.layout,
        );
        self.store = next.map(|next| next.store);
        self.over = number;
        elsewhere.clone_into(&mut self.elsewhere);
        self.gate.release(hold_of(number, MAX_HOLDS - 1));
        Ok(())
    }

    /// Give a move up: what was filled goes, and nothing is held.
    pub fn abandon(&mut self, number: u64) {
        if number <= self.layout.number {
            return;
        }
        self.over = self.over.max(number);
        self.next.take_if(|next| next.layout.number <= number);
        self.gate.release(hold_of(number, MAX_HOLDS - 1));
    }

    fn check_open(&self, number: u64) -> Result<(), PsError> {
        if number > self.over {
            Ok(())
        } else {
            Err(over(number))
        }
    }
}

/// A move holds the replicas less often.
const MAX_HOLDS: u64 = 16;

fn hold_of(number: u64, hold: u64) -> u64 {
    number * MAX_HOLDS + hold.min(MAX_HOLDS - 1)
}

fn over(number: u64) -> PsError {
    PsError::Invalid(format!("the move to layout {number} is over"))
}

#[cfg(test)]
mod tests {
    use edl_store::MovedMarks;

    use super::*;

    const MODEL: &str = r#"{"tables": [{"name": "t", "dim": 1,
        "initializer": {"kind": "constant", "params": {"value": 0.0}},
        "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 0}"#;

    fn layout(number: u64) -> Layout {
        Layout {
            number,
            replica: 0,
            num_replicas: 1,
        }
    }

    fn host() -> Host {
        let store = Store::new(0, 1);
        let model = ModelSpec::from_json(MODEL).unwrap();
        store.declare(model, &[], &[]).unwrap();
        Host::new(Some(Arc::new(store)), layout(1))
    }

    #[test]
    fn a_move_that_is_given_up_leaves_all_as_it_was() {
        let mut host = host();
        host.begin(layout(2), MODEL, false, &[]).unwrap();
        host.hold(2, 1).unwrap();
        host.check_held(2, 1).unwrap();
        assert!(host.check_held(2, 2).is_err());
        assert_eq!(host.admits(1, &[]), Entrance::Later);
        host.abandon(2);
        assert!(host.check_held(2, 1).is_err());
        assert_eq!(host.admits(1, &[]), Entrance::Now);
        // A message that was on its way comes too late.
        assert!(host.hold(2, 1).is_err());
        assert!(host.begin(layout(2), MODEL, false, &[]).is_err());
        assert!(host.switch(2, false, "there").is_err());
        assert_eq!(host.admits(1, &[]), Entrance::Now);
    }

    #[test]
    fn only_a_store_that_is_ready_is_served_and_then_nothing_of_the_layout_before() {
        let mut host = host();
        host.begin(layout(2), MODEL, false, &[]).unwrap();
        host.hold(2, 1).unwrap();
        assert!(host.switch(2, false, "there").is_err());
        let marks = MovedMarks {
            version: 9,
            ..MovedMarks::default()
        };
        host.filled(2).unwrap().take_moved_marks(&marks).unwrap();
        host.ready(2).unwrap();
        assert!(host.filled(2).is_err());
        host.switch(2, false, "there").unwrap();
        assert_eq!(host.store().unwrap().version(), 9);
        assert_eq!(host.admits(1, &[]), Entrance::Elsewhere("there".to_owned()));
        assert_eq!(host.admits(2, &[]), Entrance::Now);
        assert_eq!(host.admits(3, &[]), Entrance::Later);
        // A message that was on its way comes too late.
        host.abandon(2);
        host.switch(2, false, "there").unwrap();
        assert!(host.hold(2, 1).is_err());
        assert_eq!(host.admits(2, &[]), Entrance::Now);
    }

    #[test]
    fn who_has_no_part_of_the_next_layout_serves_nothing() {
        let mut host = host();
        host.switch(2, true, "there").unwrap();
        assert!(host.store().is_err());
        for layout in [1, 2] {
            assert_eq!(
                host.admits(layout, &[]),
                Entrance::Elsewhere("there".to_owned())
            );
        }
    }

    #[test]
    fn who_begins_with_a_move_serves_nothing_before_it_is_over() {
        let mut host = Host::new(None, layout(1));
        assert_eq!(host.admits(2, &[]), Entrance::Later);
        host.begin(layout(2), MODEL, false, &[]).unwrap();
        host.ready(2).unwrap();
        assert_eq!(host.admits(2, &[]), Entrance::Later);
        host.switch(2, false, "there").unwrap();
        assert_eq!(host.admits(2, &[]), Entrance::Now);
    }
}
