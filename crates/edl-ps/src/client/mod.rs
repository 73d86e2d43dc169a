//! The client: ids in, rows out; gradients in, one update each.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use edl_store::{Chunk, ModelSpec, PullMode, Store, StoreError, TaskAudit};
use edl_wire::op::Step;

use self::shape::{Shape, check_len};
pub use self::steps::{ComputedStep, Pulled, Receipt, StepGradients, Wanted};
use crate::dedup::{Plan, Planner, Site};
use crate::elsewhere::Elsewhere;
use crate::error::{ErrorKind, PsError};
use crate::hot_keys;
use crate::local::Local;
use crate::names::{Batch, NameSite, SentNames};
use crate::remote::Remote;
use crate::replicas::{GivenRows, Pull, Replicas, Vectors, check_given};

mod pushing;
mod shape;
mod steps;

/// The position of a scan in a table.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    table: u32,
    replica: usize,
    next: u64,
}

impl Cursor {
    /// The start of a table.
    pub fn new(table: u32) -> Self {
        Self {
            table,
            replica: 0,
            next: 0,
        }
    }
}

/// Buffers that calls use in turn.
#[derive(Default)]
struct Scratch {
    planner: Planner,
    rows: Vec<Vec<f32>>,
}

impl Scratch {
    /// Rows for every table of a plan, with whatever was in them: all will be overwritten.
    fn rows_of(&mut self, plan: &Plan) -> &mut [Vec<f32>] {
        self.rows.resize_with(plan.tables.len(), Vec::new);
        for (table, rows) in plan.tables.iter().zip(&mut self.rows) {
            rows.resize(table.keys().len() * table.dim, 0.0);
        }
        &mut self.rows
    }
}

/// How long a client that asked a layout that is over waits to be told of the one that counts.
const UNTIL_TOLD: Duration = Duration::from_secs(60);
/// It looks this often.
const LOOK: Duration = Duration::from_millis(20);

/// Reads and updates a model spread over ps replicas.
pub struct PsClient {
    /// The replicas of the known layout; replaced when they say that the layout is over.
    replicas: RwLock<Arc<dyn Replicas>>,
    shape: OnceLock<Shape>,
    scratch: Mutex<Vec<Scratch>>,
    /// The strings of keys that the replicas have; locked for the length of a call.
    sent_names: Mutex<SentNames>,
}

impl PsClient {
    /// A client of the replicas at the other end of sockets.
    pub fn remote(remote: Remote) -> Self {
        Self::over(remote.shared())
    }

    /// The same client without sockets.
    ///
    /// # Errors
    /// [`PsError::Invalid`] if the store is one of several replicas.
    pub fn in_process(store: Arc<Store>) -> Result<Self, PsError> {
        Ok(Self::over(Arc::new(Local::new(store)?)))
    }

    /// A client of one store in process, whichever part of a model it is, for simulations.
    pub(crate) fn of_part(store: Arc<Store>) -> Self {
        Self::over(Arc::new(Local::part(store)))
    }

    fn over(replicas: Arc<dyn Replicas>) -> Self {
        Self {
            replicas: RwLock::new(replicas),
            shape: OnceLock::new(),
            scratch: Mutex::new(Vec::new()),
            sent_names: Mutex::default(),
        }
    }

    /// Returns the replicas of the known layout.
    pub(crate) fn replicas(&self) -> Arc<dyn Replicas> {
        let replicas = self.replicas.read();
        replicas.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the replicas; if their layout is over, asks those that they name.
    fn asked<T>(
        &self,
        mut ask: impl FnMut(&dyn Replicas) -> Result<T, PsError>,
    ) -> Result<T, PsError> {
        let deadline = Instant::now() + UNTIL_TOLD;
        loop {
            let replicas = self.replicas();
            match ask(&*replicas) {
                Err(error) if error.kind() == ErrorKind::Moved => {
                    self.follow(&replicas, error, deadline)?;
                }
                answered => return answered,
            }
        }
    }

    /// Goes over to the replicas that those of an earlier layout have named, unless another call
    /// has done so. A replica that was started since does not know them: they are waited for, until
    /// [`PsClient::set_addresses`] tells.
    fn follow(
        &self,
        seen: &Arc<dyn Replicas>,
        error: PsError,
        deadline: Instant,
    ) -> Result<(), PsError> {
        let known = self.replicas.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&known, seen) {
            return Ok(());
        }
        let told = match &error {
            PsError::Moved(message) | PsError::Remote { message, .. } => message.as_str(),
            _ => "",
        };
        match serde_json::from_str::<Elsewhere>(told) {
            Err(_) if told.is_empty() && Instant::now() < deadline => {
                drop(known);
                thread::sleep(LOOK);
                Ok(())
            }
            Ok(there) if there.number > known.layout() => {
                *known = known.of_layout(&there)?;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Has one replica do a step of a move; both as JSON.
    ///
    /// # Errors
    /// What the replica says, or an unreachable one.
    pub fn move_step(&self, replica: usize, step: &str) -> Result<String, PsError> {
        self.replicas().move_step(replica, step)
    }

    /// Declares the model; the values of the first to declare count.
    ///
    /// # Errors
    /// A model that cannot be, or that differs from the one declared before.
    pub fn declare(&self, model: &str, dense: &[f32], state: &[f32]) -> Result<(), PsError> {
        self.declare_with(model, dense, state, &[])
    }

    /// Declares a model some of whose tables begin with rows: all tables with `given_rows`.
    ///
    /// # Errors
    /// Those of [`Self::declare`], or rows that do not fit their table.
    pub fn declare_with(
        &self,
        model: &str,
        dense: &[f32],
        state: &[f32],
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError> {
        let model = ModelSpec::from_json(model)?;
        let shape = Shape::of(&model)?;
        check_len("the dense vector", dense.len(), shape.dense_len)?;
        check_len("the state vector", state.len(), shape.state_len)?;
        check_given(&model, given)?;
        self.asked(|replicas| replicas.declare(&model, dense, state, given))?;
        // Equal to what is there already, or `declare` would have failed.
        let _ = self.shape.set(shape);
        Ok(())
    }

    /// The model's lengths, asked of replica 0 by a client that has not declared it itself.
    fn shape(&self) -> Result<&Shape, PsError> {
        if self.shape.get().is_none() {
            let shape = Shape::of(&*self.asked(|replicas| replicas.model())?)?;
            let _ = self.shape.set(shape);
        }
        let unknown = || PsError::System("the model is not known".to_owned());
        self.shape.get().ok_or_else(unknown)
    }

    /// Fences off older leases; returns the minibatch to start at.
    ///
    /// # Errors
    /// A newer lease has begun.
    pub fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        self.asked(|replicas| replicas.begin_task(task, lease))
    }

    /// Has all replicas hear of all minibatches of a lease that were pushed; called before anybody
    /// is told that the task is done. A replica without a key of a minibatch may not have heard.
    ///
    /// # Errors
    /// Those of a push.
    pub fn settle_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        self.asked(|replicas| replicas.settle_task(task, lease))
    }

    /// Says that a lease is over: nobody waits for what is under way of it.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        self.shape()?;
        self.asked(|replicas| replicas.end_task(task, lease))
    }

    /// Fetches the rows of every site and, if `vectors`, the dense and state vectors.
    ///
    /// Args: `step` as in [`Wanted`].
    ///
    /// # Errors
    /// An unknown table, or an unreachable replica.
    pub fn pull(
        &self,
        sites: &[Site<'_>],
        mode: PullMode,
        vectors: bool,
        step: Option<Step>,
    ) -> Result<Pulled, PsError> {
        let wanted = Wanted {
            sites,
            mode,
            vectors,
            step,
        };
        let (pulled, ()) =
            self.asked(|replicas| self.pulled_by(replicas, &wanted, |pull| replicas.pull(pull)))?;
        Ok(pulled)
    }

    /// Plans a push of gradients of other ids than were pulled, from the versions of that pull.
    ///
    /// # Errors
    /// An unknown table.
    pub fn planned(&self, sites: &[Site<'_>], receipt: &Receipt) -> Result<Receipt, PsError> {
        let shape = self.shape()?;
        let mut scratch = self.take_scratch();
        let num_replicas = receipt.versions.len();
        let plan = scratch.planner.plan(sites, &shape.dims, num_replicas);
        self.give_scratch(scratch);
        let mut plan = plan?;
        shape.treat(&mut plan);
        let versions = receipt.versions.clone();
        Ok(Receipt { plan, versions })
    }

    /// Plans a pull, has it made, and gives every occurrence of an id its row.
    fn pulled_by<T>(
        &self,
        replicas: &dyn Replicas,
        wanted: &Wanted<'_>,
        pull: impl FnOnce(Pull<'_>) -> Result<T, PsError>,
    ) -> Result<(Pulled, T), PsError> {
        let shape = self.shape()?;
        let mut scratch = self.take_scratch();
        let pulled = self.pulled_with(replicas.count(), &mut scratch, shape, wanted, pull);
        self.give_scratch(scratch);
        pulled
    }

    fn pulled_with<T>(
        &self,
        num_replicas: usize,
        scratch: &mut Scratch,
        shape: &Shape,
        wanted: &Wanted<'_>,
        pull: impl FnOnce(Pull<'_>) -> Result<T, PsError>,
    ) -> Result<(Pulled, T), PsError> {
        let mut plan = scratch
            .planner
            .plan(wanted.sites, &shape.dims, num_replicas)?;
        shape.treat(&mut plan);
        if wanted.mode == PullMode::Create {
            hot_keys::note(&shape.names, &plan);
        }
        let unique = scratch.rows_of(&plan);
        let (dense_len, state_len) = if wanted.vectors {
            (shape.dense_len, shape.state_len)
        } else {
            (0, 0)
        };
        let (mut dense, mut state) = (vec![0.0; dense_len], vec![0.0; state_len]);
        let mut versions = vec![0; num_replicas];
        let told = pull(Pull {
            plan: &plan,
            mode: wanted.mode,
            step: wanted.step,
            rows: unique,
            vectors: wanted.vectors.then_some(Vectors {
                dense: &mut dense,
                state: &mut state,
            }),
            versions: &mut versions,
        })?;
        let mut rows: Vec<Vec<f32>> = plan
            .site_elements
            .iter()
            .map(|&elements| vec![0.0; elements])
            .collect();
        for (table, unique) in plan.tables.iter().zip(unique) {
            table.gather(unique, &mut rows);
        }
        let pulled = Pulled {
            rows,
            dense,
            state,
            receipt: Receipt { plan, versions },
        };
        Ok((pulled, told))
    }

    /// The time that pulls and pushes have spent in the stores of all replicas, as the replicas
    /// measured it. The time of a push includes its wait for a round.
    pub fn store_time(&self) -> Duration {
        self.replicas().store_time()
    }

    /// Counts a minibatch as dealt with, without an update.
    ///
    /// # Errors
    /// A lease that is over, or an unreachable replica.
    pub fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        self.asked(|replicas| replicas.skip(task, lease, index))
    }

    /// Returns the next rows of a table and moves the cursor; `None` at the end.
    ///
    /// # Errors
    /// An unknown table, or an unreachable replica.
    pub fn scan(&self, cursor: &mut Cursor) -> Result<Option<Chunk>, PsError> {
        while cursor.replica < self.replicas().count() {
            let Cursor {
                table,
                replica,
                next,
            } = *cursor;
            // Only a scan that begins may be asked elsewhere.
            let chunk = if (replica, next) == (0, 0) {
                self.asked(|replicas| replicas.scan(0, table, 0))?
            } else {
                self.replicas().scan(replica, table, next)?
            };
            match chunk.next {
                Some(next) => cursor.next = next,
                None => (cursor.replica, cursor.next) = (cursor.replica + 1, 0),
            }
            if !chunk.keys.is_empty() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// The dim of a table.
    ///
    /// # Errors
    /// An unknown table, or no model.
    pub fn dim(&self, table: u32) -> Result<usize, PsError> {
        let dims = &self.shape()?.dims;
        let unknown = StoreError::UnknownTable {
            table,
            num_tables: dims.len(),
        };
        Ok(*dims.get(table as usize).ok_or(unknown)?)
    }

    /// For each replica, what it has applied of every task.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn audit(&self) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        self.audit_from(0)
    }

    /// The same of tasks from one on; replicas forget those before, and refuse what comes of them.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn audit_from(&self, first: u64) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        self.asked(|replicas| replicas.audit(first))
    }

    /// Counters of every replica, each a JSON object.
    ///
    /// # Errors
    /// An unreachable replica.
    pub fn stats(&self) -> Result<Vec<String>, PsError> {
        self.asked(|replicas| replicas.stats())
    }

    /// Has every replica write its files; returns their manifest entries.
    ///
    /// # Errors
    /// Files that cannot be written, or an unreachable replica.
    pub fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        self.replicas().checkpoint(directory)
    }

    /// Makes every replica remove the rows that have expired, by its own count of updates and the
    /// time `now` in seconds since 1970. Returns the removed rows, as JSON by table.
    ///
    /// # Errors
    /// No model, or an unreachable replica.
    pub fn expire(&self, now: u64) -> Result<Vec<String>, PsError> {
        self.replicas().expire(now)
    }

    /// Has every replica write its part of the tables, all at the same time; `request` is an
    /// [`edl_export::ExportRequest`] as JSON, and so is each answer an
    /// [`edl_export::ReplicaExport`].
    ///
    /// # Errors
    /// Files that cannot be written, or an unreachable replica.
    pub fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        self.replicas().export(request)
    }

    /// Sends the replicas the strings that ids were made of, for tables that keep them. The call
    /// comes before the push of a minibatch, with the minibatch's sites, even if no string has to
    /// be sent. Without sites, the call confirms the strings of the last call.
    ///
    /// # Errors
    /// A table that keeps no names, no memory for them, or an unreachable replica.
    pub fn name_keys(&self, sites: &[NameSite<'_>]) -> Result<(), PsError> {
        for site in sites {
            check_len("the array of names", site.names.len(), site.ids.len())?;
        }
        let mut sent_before = self
            .sent_names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if sites.is_empty() && !sent_before.is_unconfirmed() {
            return Ok(());
        }
        self.asked(|replicas| name_at(replicas, sites, &mut sent_before))
    }

    /// Reaches a relaunched replica at its new address; calls that wait for it go on there.
    ///
    /// # Errors
    /// No such replica, or a client in process.
    pub fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        self.replicas().set_address(replica, address)
    }

    /// Reaches all replicas where they are now; "" for one that is not there. An earlier layout than
    /// the one that is known changes nothing.
    ///
    /// # Errors
    /// Another number of replicas under the same layout, or a client in process.
    pub fn set_addresses(&self, layout: u64, addresses: &[String]) -> Result<(), PsError> {
        let known = self.replicas.write();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if layout > known.layout() {
            let addresses = addresses.to_vec();
            let number = layout;
            *known = known.of_layout(&Elsewhere { number, addresses })?;
            return Ok(());
        }
        let there = addresses.iter().enumerate();
        for (replica, address) in there.filter(|(_, address)| !address.is_empty()) {
            if layout == known.layout() {
                known.set_address(replica, address)?;
            }
        }
        Ok(())
    }

    fn take_scratch(&self) -> Scratch {
        let mut pool = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        pool.pop().unwrap_or_default()
    }

    fn give_scratch(&self, scratch: Scratch) {
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scratch);
    }
}

/// Has the replicas of one layout know strings of ids.
fn name_at(
    replicas: &dyn Replicas,
    sites: &[NameSite<'_>],
    sent_before: &mut SentNames,
) -> Result<(), PsError> {
    let count = replicas.count();
    let mut batch = sent_before.go_over_to(replicas.layout(), count);
    let unsent = sent_before.unsent(sites, count);
    for (names, more) in batch.iter_mut().zip(unsent) {
        names.extend(more);
    }
    let mut sent: Batch = vec![Vec::new(); count];
    loop {
        let answers = replicas.name(&batch)?;
        let lost = sent_before.heard(&batch, &answers);
        for (sent, names) in sent.iter_mut().zip(&mut batch) {
            sent.append(names);
        }
        if lost.is_empty() {
            sent_before.keep(sent);
            return Ok(());
        }
        batch = sent_before.again(sites, &lost);
    }
}
