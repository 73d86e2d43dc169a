//! A host that is shared by the threads of a server: who may not come in waits here.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use edl_store::{MovedMarks, Progress, Remembered, RememberedKind, RowsToPut, Store};
use edl_wire::handshake::Place;
use edl_wire::op::take;
use edl_wire::service::PS;
use edl_wire::{Credentials, WireError, give_way};

use super::copying::{copy_tables, copy_vectors};
use super::gate::Update;
use super::steps::{Described, MoveStep, RedoLog, Told};
use super::{Entrance, Host, Layout};
use crate::elsewhere::Elsewhere;
use crate::error::PsError;
use crate::far::{self, FarFiles};
use crate::remote::{Remote, RemoteOptions};
use crate::synchrony::{Coordinator, Synchrony};

/// A waiting thread looks this often whether its peer is still there.
const LOOK: Duration = Duration::from_millis(20);
/// How long a hold waits for requests in work.
const DRAIN: Duration = Duration::from_secs(2);
/// How long another replica that is given rows may not answer.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Replicas of the same process by their addresses, which are reached without sockets.
pub(crate) type Near = HashMap<String, Arc<Hosted>>;

/// The served store, and the gate of its requests.
pub(crate) struct Hosted {
    state: Mutex<State>,
    changed: Condvar,
    synchrony: Synchrony,
    /// Late gradients are applied with a smaller learning rate.
    modulates: bool,
    /// The first lease that is let in, of each store that is served.
    first_lease: u32,
    /// The token for other replicas.
    token: Vec<u8>,
    tls: Option<Arc<Credentials>>,
}

struct State {
    host: Host,
    coordinator: Arc<Coordinator>,
    /// Requests in work that a hold waits for.
    inside: usize,
}

/// One store, as connections of one layout are served from it.
#[derive(Clone)]
pub(crate) struct Served {
    /// The layout that was served when the connection came.
    pub(crate) layout: u64,
    pub(crate) store: Arc<Store>,
    pub(crate) coordinator: Arc<Coordinator>,
}

/// A request in work.
pub(crate) struct Inside<'h>(&'h Hosted);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

impl Hosted {
    pub(crate) fn new(
        host: Host,
        coordinator: Coordinator,
        (synchrony, modulates, first_lease): (Synchrony, bool, u32),
        token: &[u8],
        tls: Option<&Arc<Credentials>>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                host,
                coordinator: Arc::new(coordinator),
                inside: 0,
            }),
            changed: Condvar::new(),
            synchrony,
            modulates,
            first_lease,
            token: token.to_vec(),
            tls: tls.cloned(),
        }
    }

    pub(crate) fn place(&self) -> (Place, u16) {
        let layout = self.lock().host.layout();
        let place = Place {
            number: layout.replica,
            of: layout.num_replicas,
        };
        (place, layout.number as u16)
    }

    /// Returns the served store: none, or at first the given store.
    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.lock().host.store().ok().cloned()
    }

    /// Returns the store for a connection of a layout; the call waits for a layout that is about to
    /// come. `None`: the peer has left, or nothing is served.
    pub(crate) fn served(&self, layout: u64, is_there: impl Fn() -> bool) -> Option<Served> {
        let mut state = self.lock();
        while layout > state.host.layout().number {
            if !is_there() {
                return None;
            }
            state = self.wait(state, LOOK);
        }
        Some(Served {
            layout: state.host.layout().number,
            store: state.host.store().ok()?.clone(),
            coordinator: state.coordinator.clone(),
        })
    }

    /// Waits until a request of that layout may be done.
    pub(crate) fn enter(
        &self,
        layout: u64,
        updates: &[Update],
        is_there: impl Fn() -> bool,
    ) -> Result<Inside<'_>, PsError> {
        let mut state = self.lock();
        loop {
            match state.host.admits(layout, updates) {
                Entrance::Now => break,
                Entrance::Elsewhere(told) => return Err(PsError::Moved(told)),
                Entrance::Later if !is_there() => {
                    let gone = std::io::Error::other("the peer has left");
                    return Err(WireError::from(gone).into());
                }
                Entrance::Later => state = self.wait(state, LOOK),
            }
        }
        state.inside += 1;
        Ok(Inside(self))
    }

    /// A connection is lost.
    pub(crate) fn lost(&self, connection: u64) {
        let state = self.lock();
        let (store, coordinator) = (state.host.store().cloned(), state.coordinator.clone());
        drop(state);
        if let Ok(store) = store {
            coordinator.lost(&store, connection);
        }
    }

    /// Whether a request of that layout may be done now, for those who do not wait in a thread.
    pub(crate) fn entrance(&self, layout: u64, updates: &[Update]) -> Entrance {
        self.lock().host.admits(layout, updates)
    }

    /// Checks that what a connection is served from is what is served.
    pub(crate) fn check_current(&self, layout: u64) -> Result<(), PsError> {
        match self.entrance(layout, &[]) {
            Entrance::Elsewhere(told) => Err(PsError::Moved(told)),
            Entrance::Now | Entrance::Later => Ok(()),
        }
    }

    /// Takes what another replica gives.
    pub(crate) fn take(&self, request: &take::Request<'_>) -> Result<(), PsError> {
        let store = self.lock().host.filled(request.layout)?;
        take_into(&store, &request.given)
    }

    /// Does a step of a move; returns what is told, as JSON.
    ///
    /// Args: `near` are all others there are, in a simulation; `None`: others are behind sockets.
    pub(crate) fn step(
        &self,
        step: &str,
        far: Option<&dyn FarFiles>,
        near: Option<&Near>,
        progress: Progress<'_>,
    ) -> Result<String, PsError> {
        let step: MoveStep = serde_json::from_str(step)
            .map_err(|error| PsError::Invalid(format!("a step of a move: {error}")))?;
        let told = self.done(step, far, near, progress)?;
        serde_json::to_string(&told)
            .map_err(|error| PsError::System(format!("an answer cannot be written: {error}")))
    }

    fn done(
        &self,
        step: MoveStep,
        far: Option<&dyn FarFiles>,
        near: Option<&Near>,
        progress: Progress<'_>,
    ) -> Result<Told, PsError> {
        let mut told = Told::default();
        match step {
            MoveStep::Describe {} => told.described = Some(self.describe()?),
            MoveStep::Begin {
                number,
                replica,
                num_replicas,
                model,
                is_restored,
                num_rows,
                memory_limit,
            } => {
                let layout = Layout {
                    number,
                    replica,
                    num_replicas,
                };
                let mut state = self.lock();
                state.host.begin(layout, &model, is_restored, &num_rows)?;
                let filled = state.host.filled(number)?;
                filled.set_memory_limit(memory_limit);
                filled.refuse_leases_before(self.first_lease);
                if self.modulates {
                    filled.modulate_learning_rate();
                }
            }
            MoveStep::Copy {
                number,
                targets,
                round,
                is_last,
            } => {
                let targets = targets
                    .iter()
                    .map(|target| self.giver(number, target, near));
                let givers = targets.collect::<Result<Vec<_>, PsError>>()?;
                let copied = copy(
                    &*self.current()?,
                    number,
                    givers,
                    (round, is_last),
                    progress,
                )?;
                told.num_rows = Some(copied);
            }
            MoveStep::Hold { number, hold } => told.marks = Some(self.hold(number, hold)?),
            MoveStep::Settle {
                number,
                hold,
                limits,
                wait_ms,
            } => {
                self.lock().host.settle(number, hold, &limits)?;
                self.changed.notify_all();
                told.marks = Some(self.settled(&limits, Duration::from_millis(wait_ms))?);
            }
            MoveStep::Cut {
                number,
                hold,
                directory,
            } => {
                // Asked again, since nobody heard the answer, it would be of another instant.
                self.lock().host.check_held(number, hold)?;
                let store = self.current()?;
                // The written files show the store at an instant before their first piece.
                let progress = || {
                    self.release(number, hold);
                    progress();
                };
                let entry = far::checkpoint(&store, &directory, far, &progress);
                self.release(number, hold);
                told.entry = Some(entry?);
            }
            MoveStep::Release { number, hold } => self.release(number, hold),
            MoveStep::Ready {
                number,
                marks,
                redo_log,
            } => self.ready(number, &marks, redo_log.as_ref(), progress)?,
            MoveStep::Switch {
                number,
                leaves,
                addresses,
            } => self.switch(number, leaves, addresses)?,
            MoveStep::Abandon { number } => self.let_in(|host| host.abandon(number)),
        }
        Ok(told)
    }

    fn describe(&self) -> Result<Described, PsError> {
        let store = self.current()?;
        let (model, is_restored) = store.model_to_move()?;
        let model = serde_json::to_string(&*model)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        let tables = store.stats().tables;
        Ok(Described {
            model,
            is_restored,
            num_rows: tables.iter().map(|table| table.rows).collect(),
            row_bytes: tables.iter().map(|table| table.bytes).sum(),
        })
    }

    /// A way to a replica of the next layout; "": to this one.
    fn giver(&self, number: u64, address: &str, near: Option<&Near>) -> Result<Giver, PsError> {
        if address.is_empty() {
            return Ok(Giver::Here(self.lock().host.filled(number)?));
        }
        if let Some(near) = near {
            let gone = || PsError::System(format!("nobody is at {address}"));
            let there = near.get(address).ok_or_else(gone)?;
            return Ok(Giver::Here(there.lock().host.filled(number)?));
        }
        let options = RemoteOptions {
            worker_id: -1,
            timeout: GIVE_UP,
            silence_timeout: GIVE_UP,
            connect_timeout: GIVE_UP,
            unix_sockets: true,
            whole_job: false,
            layout: 0,
            service: &PS,
            tls: self.tls.clone(),
        };
        let there = Remote::connect(&[address.to_owned()], &self.token, options)?;
        Ok(Giver::There(Box::new(there), number))
    }

    /// Lets nothing in, and returns when nothing is in work: what is held then.
    fn hold(&self, number: u64, hold: u64) -> Result<MovedMarks, PsError> {
        let by = Instant::now() + DRAIN;
        let mut state = self.lock();
        state.host.hold(number, hold)?;
        state.coordinator.hold(true);
        while state.inside > 0 {
            let Some(left) = by.checked_duration_since(Instant::now()) else {
                let words = "requests in work take too long for a move".to_owned();
                return Err(PsError::System(words));
            };
            state = self.wait(state, left);
        }
        let store = state.host.store()?.clone();
        drop(state);
        Ok(store.marks_to_move()?)
    }

    /// Waits until the store has applied what others have, and nothing is in work.
    fn settled(&self, limits: &[Update], longest: Duration) -> Result<MovedMarks, PsError> {
        let by = Instant::now() + longest;
        let mut state = self.lock();
        loop {
            let marks = state.host.store()?.marks_to_move()?;
            let next: HashMap<u64, u32> = marks.watermarks.iter().map(|m| (m.0, m.2)).collect();
            let has = |&(task, end): &Update| next.get(&task).copied().unwrap_or(0) >= end;
            let left = by.checked_duration_since(Instant::now());
            match left {
                Some(left) if state.inside > 0 || !limits.iter().all(has) => {
                    state = self.wait(state, left);
                }
                _ => return Ok(marks),
            }
        }
    }

    /// The store that is filled has all; it begins its redo log before anything changes it.
    fn ready(
        &self,
        number: u64,
        marks: &MovedMarks,
        redo_log: Option<&RedoLog>,
        progress: Progress<'_>,
    ) -> Result<(), PsError> {
        let store = self.lock().host.filled(number)?;
        // First, since a log begins with the version of its store.
        store.take_moved_marks(marks)?;
        if let Some(RedoLog { folder, limit }) = redo_log {
            store.redo(folder, *limit, progress)?;
        }
        self.lock().host.ready(number)
    }

    fn release(&self, number: u64, hold: u64) {
        self.let_in(|host| host.release(number, hold));
    }

    /// Does what may open the gate.
    fn let_in(&self, open: impl FnOnce(&mut Host)) {
        let mut state = self.lock();
        open(&mut state.host);
        state.coordinator.hold(state.host.is_held());
        self.changed.notify_all();
    }

    fn switch(&self, number: u64, leaves: bool, addresses: Vec<String>) -> Result<(), PsError> {
        let elsewhere = serde_json::to_string(&Elsewhere { number, addresses })
            .map_err(|error| PsError::System(format!("addresses cannot be written: {error}")))?;
        let mut state = self.lock();
        let before = state.host.layout().number;
        state.host.switch(number, leaves, &elsewhere)?;
        if state.host.layout().number != before
            && let Ok(store) = state.host.store()
        {
            self.synchrony.bind(store);
            let replica = store.replica();
            state.coordinator = Arc::new(Coordinator::new(self.synchrony, replica));
        }
        self.changed.notify_all();
        Ok(())
    }

    fn current(&self) -> Result<Arc<Store>, PsError> {
        Ok(self.lock().host.store()?.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>, longest: Duration) -> MutexGuard<'s, State> {
        give_way();
        let waited = self.changed.wait_timeout(state, longest);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The way of rows to a replica of the next layout.
enum Giver {
    Here(Arc<Store>),
    There(Box<Remote>, u64),
}

impl Giver {
    fn give(&mut self, given: take::Given<'_>) -> Result<(), PsError> {
        match self {
            Self::Here(store) => take_into(store, &given),
            Self::There(remote, layout) => remote.give_moved(take::Request {
                layout: *layout,
                given,
            }),
        }
    }
}

/// Gives those of the next layout what a store has, or what has changed since the round before.
fn copy(
    store: &Store,
    number: u64,
    mut givers: Vec<Giver>,
    (round, is_last): (u32, bool),
    progress: Progress<'_>,
) -> Result<u64, PsError> {
    let name = |round: u32| format!("move to layout {number}, round {round}");
    let since = round.checked_sub(1).map(name);
    let names = (&*name(round), since.as_deref());
    let num_replicas = givers.len() as u32;
    let copied =
        copy_tables(
            store,
            num_replicas,
            names,
            progress,
            |replica, moved| match &mut givers[replica as usize] {
                Giver::Here(store) => moved.put_into(store),
                there @ Giver::There(..) => there.give(moved.given()),
            },
        )?;
    for (replica, giver) in (0..).zip(&mut givers).filter(|_| is_last) {
        copy_vectors(store, (replica, num_replicas), |part, values| {
            giver.give(take::Given::Part {
                first: part.start as u64,
                end: part.end as u64,
                values,
            })
        })?;
    }
    Ok(copied)
}

fn take_into(store: &Store, given: &take::Given<'_>) -> Result<(), PsError> {
    match *given {
        take::Given::Rows {
            table,
            keys,
            versions,
            births,
            rows,
        } => {
            let given = RowsToPut {
                keys,
                versions,
                words: births,
                rows,
            };
            Ok(store.put_moved(table, &given)?)
        }
        take::Given::Remembered {
            table,
            kind,
            keys,
            versions,
            ends,
            bytes,
        } => {
            let unknown = || PsError::Invalid(format!("nothing of kind {kind} is remembered"));
            let given = Remembered {
                kind: RememberedKind::of_number(kind).ok_or_else(unknown)?,
                keys: keys.to_vec(),
                versions: versions.to_vec(),
                ends: ends.to_vec(),
                bytes: bytes.to_vec(),
            };
            Ok(store.put_remembered(table, &given)?)
        }
        take::Given::Part { first, end, values } => {
            Ok(store.write_part(first as usize..end as usize, values)?)
        }
    }
}
