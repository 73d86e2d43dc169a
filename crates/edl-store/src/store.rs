//! The store: the answers of a replica, and the locks that it takes for them.
//!
//! Locks are taken in this order: the update lock (shared by updates, exclusive for the instant of
//! a checkpoint), the task's watermark, then one stripe or the vectors at a time.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::budget::Budget;
use crate::checkpoint::LastWhole;
use crate::cold::{ColdRoom, Disk};
use crate::error::StoreError;
use crate::gradient::{RoundMember, TableGrads};
use crate::index::MAX_VERSION;
use crate::life::{Occurrence, Times};
use crate::placement::Placement;
use crate::progress::{Progress, unseen};
use crate::redo::{Change as Noting, Log};
use crate::route::dense_range;
use crate::spec::ModelSpec;
use crate::stripe::Chunk;
use crate::table::{PullMode, Table, check_statistics, make_room};
use crate::tasks::{TaskAudit, Tasks, Verdict};
use crate::treatment::Treatment;
use crate::vectors::{DenseRule, Vectors, check_len};

use self::cut::Marks;
use self::first_rows::FirstRows;

pub use self::counters::{STALENESS_BUCKETS, Staleness, Stats, TableStats};
pub use self::cut::{Cut, Piece};
pub use self::moving::{MovedMarks, RowsToPut};
pub use self::names::Named;
pub use self::redo::Redone;
pub use self::round::RoundGradient;

mod checkpoint;
mod counters;
mod cut;
mod first_rows;
mod giving;
mod life;
mod moving;
mod names;
mod redo;
mod round;
#[cfg(test)]
mod tests;

/// One minibatch's gradients.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    /// The task that the minibatch is of.
    pub task: u64,
    /// The lease under which it was computed.
    pub lease: u32,
    /// The minibatch's number in the task.
    pub index: u32,
    /// Records in the minibatch.
    pub num_records: u32,
    /// The learning rate of this update.
    pub learning_rate: f32,
    /// This replica's version when its parameters were pulled.
    pub pulled_version: u64,
    /// Gradients by table.
    pub tables: &'a [TableGrads<'a>],
    /// This replica's range of the dense gradient.
    pub dense: &'a [f32],
    /// This replica's range of the state's change.
    pub state: &'a [f32],
}

impl<'a> Push<'a> {
    /// Return an update of several minibatches, of which one stands for all where the update is to
    /// have a name.
    fn of_round(
        first: Option<&RoundMember>,
        learning_rate: f32,
        tables: &'a [TableGrads<'a>],
        dense: &'a [f32],
        state: &'a [f32],
    ) -> Self {
        Self {
            task: first.map_or(0, |member| member.task),
            lease: 0,
            index: first.map_or(0, |member| member.index),
            num_records: 0,
            learning_rate,
            pulled_version: 0,
            tables,
            dense,
            state,
        }
    }

    /// Return what it says of its minibatches.
    fn member(&self, num_minibatches: u32) -> RoundMember {
        RoundMember {
            task: self.task,
            lease: self.lease,
            index: self.index,
            num_minibatches,
            num_records: self.num_records,
            pulled_version: self.pulled_version,
        }
    }
}

/// The outcome of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// False if the minibatch had been dealt with before.
    pub applied: bool,
    /// The replica's version after it.
    pub version: u64,
    /// Updates that came between the pull and this one.
    pub staleness: u64,
}

/// The part of a model that one ps replica holds. Shared by threads; see the module for locks.
pub struct Store {
    replica: u32,
    num_replicas: u32,
    /// Set once, by the first declaration or from a checkpoint.
    model: OnceLock<Model>,
    /// Put into the tables by the first declaration.
    first_rows: Mutex<Vec<FirstRows>>,
    /// Held while a declaration is checked, so that one of several first ones wins.
    declaring: Mutex<()>,
    /// Updates hold it shared; a checkpoint takes it alone to mark its instant.
    updates: RwLock<()>,
    /// Held by the one checkpoint that is being written. For each folder, it has the last
    /// checkpoint with all rows.
    checkpointing: Mutex<BTreeMap<PathBuf, LastWhole>>,
    /// The marks of the last cuts; the holder of `checkpointing` changes them.
    marks: Mutex<Marks>,
    /// How often rows were removed, under the shared update lock: a checkpoint before is no base.
    removals: AtomicU64,
    /// Changes when names that this replica was told may be gone.
    naming: AtomicU64,
    /// Late gradients are applied with a smaller learning rate.
    modulates: AtomicBool,
    /// The largest allowed staleness of a gradient.
    max_staleness: AtomicU64,
    /// Whether a thread panicked in the middle of a change. It is set before the update lock is
    /// released, so that no checkpoint has half a change.
    half_changed: AtomicBool,
    /// The bytes of rows, and their limit.
    budget: Arc<Budget>,
    /// The log of changes for a successor; it is not set before the changes of a predecessor are
    /// repeated.
    redo_log: OnceLock<Log>,
}

/// All that depends on what the model is.
struct Model {
    spec: RwLock<Arc<ModelSpec>>,
    /// It is a checkpoint's, and nobody has declared it since.
    restored: AtomicBool,
    placement: Placement,
    tables: Vec<Table>,
    vectors: RwLock<Vectors>,
    /// Updates begun; each takes the next number under the shared update lock.
    begun: AtomicU64,
    /// The number of applied updates. A thread that reads it before the values finds at least so
    /// many updates in them.
    version: AtomicU64,
    tasks: Tasks,
    staleness: Mutex<Staleness>,
    /// The times of versions, for expiry by days.
    times: Mutex<Times>,
}

impl Store {
    /// Make an empty store; `declare` says what it holds.
    pub fn new(replica: u32, num_replicas: u32) -> Self {
        Self {
            replica,
            num_replicas,
            model: OnceLock::new(),
            first_rows: Mutex::default(),
            declaring: Mutex::new(()),
            updates: RwLock::new(()),
            checkpointing: Mutex::default(),
            marks: Mutex::default(),
            removals: AtomicU64::new(0),
            naming: AtomicU64::new(names::new_generation()),
            modulates: AtomicBool::new(false),
            max_staleness: AtomicU64::new(u64::MAX),
            half_changed: AtomicBool::new(false),
            budget: Arc::default(),
            redo_log: OnceLock::new(),
        }
    }

    /// Make an empty store whose tables bring rows to disk that have no room in memory; the folder is
    /// made if it is not there.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn on_disk(replica: u32, num_replicas: u32, room: &ColdRoom) -> Result<Self, StoreError> {
        let store = Self::new(replica, num_replicas);
        store.set_memory_limit(Some(room.memory_limit));
        store.budget.set_disk(Disk::new(&room.folder)?);
        Ok(store)
    }

    /// Return why rows that were brought to disk are lost, if they are: this store answers nothing
    /// more, and its process should end.
    pub fn lost_rows(&self) -> Option<StoreError> {
        self.budget.disk()?.lost()
    }

    /// From now on, divide the learning rate of each update by its staleness, if that is above 1
    /// (Zhang, Gupta, Lian, Liu: "Staleness-aware async-SGD for distributed deep learning", 2016).
    pub fn modulate_learning_rate(&self) {
        self.modulates.store(true, Ordering::Relaxed);
    }

    /// Whether it does so.
    pub fn modulates(&self) -> bool {
        self.modulates.load(Ordering::Relaxed)
    }

    /// From now on, refuse to apply a gradient that is later than so many updates.
    pub fn bound_staleness(&self, max_staleness: u64) {
        self.max_staleness.store(max_staleness, Ordering::Relaxed);
    }

    /// Return by what the learning rate of an update is multiplied.
    pub fn modulation(&self, staleness: u64) -> f32 {
        if self.modulates() {
            1.0 / staleness.max(1) as f32
        } else {
            1.0
        }
    }

    /// Return the number of updates applied; 0 before a model is declared.
    pub fn version(&self) -> u64 {
        self.model.get().map_or(0, Model::version)
    }

    /// Create no more rows once all rows take so many bytes; `None` for no limit.
    ///
    /// A batch that would go beyond is refused whole with [`StoreError::MemoryLimit`]; rows that
    /// exist are pulled and pushed as before. A checkpoint that has more is restored all the same.
    pub fn set_memory_limit(&self, bytes: Option<u64>) {
        self.budget.set_limit(bytes);
    }

    /// Return this replica's number.
    pub fn replica(&self) -> u32 {
        self.replica
    }

    /// Return the number of replicas that share the model.
    pub fn num_replicas(&self) -> u32 {
        self.num_replicas
    }

    /// Return the model, once it is known.
    pub fn model(&self) -> Option<Arc<ModelSpec>> {
        self.model.get().map(|model| model.spec.read().clone())
    }

    /// Declare the model.
    ///
    /// The first call gives the values of this replica's ranges of the dense and state vectors.
    /// Later calls, and all calls after a restore, only compare the model.
    ///
    /// # Errors
    /// A model that cannot be stored, that differs from the declared one, or whose first rows have
    /// not arrived.
    pub fn declare(&self, spec: ModelSpec, dense: &[f32], state: &[f32]) -> Result<(), StoreError> {
        self.declare_showing(spec, dense, state, &unseen)
    }

    /// The same, telling of progress: a table may begin with many rows.
    ///
    /// # Errors
    /// As those of [`Store::declare`].
    pub fn declare_showing(
        &self,
        spec: ModelSpec,
        dense: &[f32],
        state: &[f32],
        progress: Progress<'_>,
    ) -> Result<(), StoreError> {
        let _declaring = self.declaring.lock();
        if let Some(model) = self.model.get() {
            let _updates = self.updates.read();
            return model.declare_again(spec, self);
        }
        let placement = Placement::new(self.replica, self.num_replicas)?;
        let range = |len| dense_range(len, self.replica, self.num_replicas);
        check_len(
            "the dense vector",
            range(spec.dense_len()?).len(),
            dense.len(),
        )?;
        check_len(
            "the state vector",
            range(spec.state_len()?).len(),
            state.len(),
        )?;
        let rule = DenseRule::of(&spec, range(spec.dense_len()?))?;
        let spec = Arc::new(spec);
        let tables = spec.tables.iter();
        let tables =
            tables.map(|table| Table::new(table, spec.seed, placement, self.budget.clone()));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        check_statistics(&tables)?;
        let mut first_rows = self.first_rows.lock();
        first_rows::check_given(&first_rows, &spec, placement)?;
        first_rows::put(&first_rows, &spec, &tables, progress)?;
        first_rows.clear();
        first_rows.shrink_to_fit();
        let model = Model {
            restored: AtomicBool::new(false),
            placement,
            tables,
            vectors: RwLock::new(Vectors::new(rule, dense, state)),
            begun: AtomicU64::new(0),
            version: AtomicU64::new(0),
            tasks: Tasks::default(),
            staleness: Mutex::default(),
            times: Mutex::default(),
            spec: RwLock::new(spec.clone()),
        };
        model.treat(&spec, self)?;
        self.note_declared(&spec, dense, state);
        // No other thread sets it while `declaring` is held.
        let _ = self.model.set(model);
        Ok(())
    }

    fn declared(&self, wanted: &'static str) -> Result<&Model, StoreError> {
        self.check_whole()?;
        self.model.get().ok_or(StoreError::NotDeclared(wanted))
    }

    /// Refuse everything once a change was left half done.
    fn check_whole(&self) -> Result<(), StoreError> {
        if self.half_changed.load(Ordering::Acquire) {
            return Err(StoreError::HalfChanged {
                replica: self.replica,
            });
        }
        self.lost_rows().map_or(Ok(()), Err)
    }

    /// Whether a pull or a push may wait for a disk.
    pub fn may_wait(&self) -> bool {
        self.budget.disk().is_some() || self.budget.saved_is_large()
    }

    /// Wait while too many rows are copied for a checkpoint, but not for a disk that hangs: its
    /// snapshot then ends before its time. The caller holds no lock.
    fn wait_for_checkpoint(&self, model: &Model) {
        if self.budget.wait_for_saved() {
            return;
        }
        // With this lock no other checkpoint begins, so the snapshot cannot be another one's.
        let _updates = self.updates.read();
        if self.budget.is_given_up() {
            model.tables.iter().for_each(Table::end_snapshot);
        }
    }

    /// Begin to change rows, vectors or watermarks; held until they fit each other again.
    fn change(&self) -> Change<'_> {
        Change(&self.half_changed)
    }

    /// Refuse older leases of a task from now on; return the minibatch to go on from.
    ///
    /// Returns after an update of an older lease that is under way.
    ///
    /// # Errors
    /// [`StoreError::StaleLease`] if a newer lease has begun.
    pub fn begin_task(&self, task: u64, lease: u32) -> Result<u32, StoreError> {
        let tasks = &self.declared("tasks begin")?.tasks;
        let _updates = self.updates.read();
        let watermark = tasks.get(task);
        let mut watermark = watermark.lock();
        tasks.fence(&mut watermark, task, lease)?;
        self.note(&Noting::Begin { task, lease });
        Ok(watermark.next_index)
    }

    /// Write the weights of `keys`, each once, to `out`: `keys.len() * dim` floats.
    ///
    /// # Errors
    /// An unknown table, an array of another length, or a key of another replica.
    pub fn pull_rows(
        &self,
        table: u32,
        keys: &[u64],
        mode: PullMode,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        let model = self.declared("rows are pulled")?;
        let table = model.table(table)?;
        table.check("the array for rows", keys, out.len())?;
        if mode == PullMode::Create {
            table.check_room(keys)?;
        }
        let _change = self.change();
        table.pull(keys, mode, model.version(), out)?;
        make_room(&model.tables);
        Ok(())
    }

    /// Copy this replica's ranges of the dense and state vectors; return the version.
    ///
    /// # Errors
    /// Arrays of other lengths.
    pub fn pull_vectors(&self, dense: &mut [f32], state: &mut [f32]) -> Result<u64, StoreError> {
        let model = self.declared("vectors are pulled")?;
        // Before the values: if an update comes between, staleness is overstated by one.
        let version = model.version();
        let vectors = model.vectors.read();
        vectors.check(dense.len(), state.len())?;
        vectors.read(dense, state);
        Ok(version)
    }

    /// Apply one minibatch's gradients, unless they have been applied before.
    ///
    /// # Errors
    /// An old lease, a gap in the minibatches, a gradient that is too late, or arrays that do not
    /// fit the model; nothing has changed then.
    pub fn apply(&self, push: &Push<'_>) -> Result<Applied, StoreError> {
        self.apply_several(push, 1)
    }

    /// Apply the gradients of several minibatches of one task that follow each other, as one
    /// update; `push.index` is the first's, and `push.num_records` counts those of all.
    ///
    /// # Errors
    /// The same. A part of them that has been applied before is as a gap.
    pub fn apply_several(
        &self,
        push: &Push<'_>,
        num_minibatches: u32,
    ) -> Result<Applied, StoreError> {
        let model = self.declared("gradients are pushed")?;
        self.wait_for_checkpoint(model);
        let _updates = self.updates.read();
        model.check(push)?;
        let watermark = model.tasks.get(push.task);
        let mut watermark = watermark.lock();
        let minibatches = (push.index, num_minibatches);
        let verdict =
            (model.tasks).judge_several(&mut watermark, push.task, push.lease, minibatches)?;
        if verdict == Verdict::Done {
            return Ok(Applied {
                applied: false,
                version: model.version(),
                staleness: 0,
            });
        }
        let before = self.begin_update(model, push)?;
        let staleness = before.saturating_sub(push.pulled_version);
        let learning_rate = push.learning_rate * self.modulation(staleness);
        let member = push.member(num_minibatches);
        self.note_update(iter::once(member), push, 1.0, learning_rate);
        let _change = self.change();
        model.change(push, before, 1.0, learning_rate)?;
        model.staleness.lock().add(staleness);
        watermark.advance_by(num_minibatches, push.num_records);
        Ok(Applied {
            applied: true,
            version: before + 1,
            staleness,
        })
    }

    /// Take the next number for an update, unless its gradient is too late for it; return the
    /// number of those before.
    fn begin_update(&self, model: &Model, push: &Push<'_>) -> Result<u64, StoreError> {
        let limit = self.max_staleness.load(Ordering::Relaxed);
        let next = |before: u64| {
            let is_late = before.saturating_sub(push.pulled_version) > limit;
            (!is_late).then_some(before + 1)
        };
        let begun = &model.begun;
        let begun = begun.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        begun.map_err(|version| StoreError::TooStale {
            task: push.task,
            index: push.index,
            pulled: push.pulled_version,
            version,
            limit,
        })
    }

    /// Count a minibatch as dealt with, without an update.
    ///
    /// # Errors
    /// An old lease, or a gap in the minibatches.
    pub fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), StoreError> {
        let model = self.declared("minibatches are skipped")?;
        let _updates = self.updates.read();
        let watermark = model.tasks.get(task);
        let mut watermark = watermark.lock();
        if model.tasks.judge(&mut watermark, task, lease, index)? == Verdict::Next {
            self.note(&Noting::Skip { task, lease, index });
            watermark.advance(0);
        }
        Ok(())
    }

    /// Return up to `max_rows` rows of a table from `cursor` on; the first cursor is 0.
    ///
    /// Rows that exist when the scan begins are returned exactly once, whatever is created
    /// meanwhile; each as it is when its chunk is read.
    ///
    /// # Errors
    /// An unknown table.
    pub fn scan(&self, table: u32, cursor: u64, max_rows: usize) -> Result<Chunk, StoreError> {
        let table = self.declared("a table is scanned")?.table(table)?;
        table.scan(cursor, max_rows)
    }

    /// Forget what has been applied of all tasks before one, and refuse what comes of them.
    pub fn forget_tasks_before(&self, first: u64) {
        if let Some(model) = self.model.get() {
            model.tasks.forget_before(first);
        }
    }

    /// Return what has been applied of each task, by task number; nothing of those forgotten.
    pub fn audit(&self) -> Vec<TaskAudit> {
        let all = self.model.get().map(|model| model.tasks.all());
        all.into_iter()
            .flatten()
            .map(|(task, watermark)| TaskAudit {
                task,
                next_index: watermark.next_index,
                num_records: watermark.num_records,
            })
            .collect()
    }
}

/// Something that is being changed; a panic meanwhile leaves it half changed.
struct Change<'s>(&'s AtomicBool);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl Model {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn table(&self, table: u32) -> Result<&Table, StoreError> {
        self.tables
            .get(table as usize)
            .ok_or(StoreError::UnknownTable {
                table,
                num_tables: self.tables.len(),
            })
    }

    /// Compare with what was declared before. The first to declare after a restore may say anew
    /// what is trained, and by which momentum state changes.
    fn declare_again(&self, spec: ModelSpec, store: &Store) -> Result<(), StoreError> {
        let mut declared = self.spec.write();
        if !self.restored.load(Ordering::Acquire) {
            return match spec.difference(&declared) {
                None => Ok(()),
                Some(said) => Err(StoreError::ModelMismatch(format!(
                    "{said}; do all workers run the same model?"
                ))),
            };
        }
        if let Some(said) = spec.untreated().difference(&declared.untreated()) {
            return Err(StoreError::ModelMismatch(format!(
                "{said}; the checkpoint belongs to another model"
            )));
        }
        self.treat(&spec, store)?;
        store.note_declared(&spec, &[], &[]);
        *declared = Arc::new(spec);
        self.restored.store(false, Ordering::Release);
        Ok(())
    }

    /// From now on, do to each table and variable what `spec` says.
    fn treat(&self, spec: &ModelSpec, store: &Store) -> Result<(), StoreError> {
        let treatment = Treatment::of(spec, store.replica, store.num_replicas)?;
        let held = dense_range(spec.dense_len()?, store.replica, store.num_replicas);
        let rule = DenseRule::of(spec, held)?;
        self.vectors.write().treat(rule, treatment);
        for (table, spec) in self.tables.iter().zip(&spec.tables) {
            table.set_trainable(spec.trainable);
            table.set_rate(spec.rate as f32);
        }
        Ok(())
    }

    /// Check all of a push, so that nothing can fail once the first row has changed.
    fn check(&self, push: &Push<'_>) -> Result<(), StoreError> {
        for grads in push.tables {
            let table = self.table(grads.table)?;
            table.check("the gradient", grads.keys, grads.grads.len())?;
            table.check_room(grads.keys)?;
        }
        let vectors = self.vectors.read();
        vectors.check(push.dense.len(), push.state.len())?;
        if self.version() >= MAX_VERSION - u64::from(u16::MAX) {
            return Err(StoreError::Full(format!(
                "this replica has applied {} updates, the most that it can count; nothing was \
                 changed. Start a new job from the last checkpoint (--checkpoint_dir_for_init), \
                 which begins to count anew",
                self.version()
            )));
        }
        Ok(())
    }

    /// Change rows and vectors, after `before` updates that have begun.
    ///
    /// The version grows when the values have changed: a pull that comes between must not count as
    /// newer than what it reads.
    ///
    /// Args: `weight` is the sum of the weights of the minibatches that the push is made of.
    ///
    /// # Errors
    /// Rows on disk cannot be read: the store is half changed, and knows.
    fn change(
        &self,
        push: &Push<'_>,
        before: u64,
        weight: f32,
        learning_rate: f32,
    ) -> Result<(), StoreError> {
        let version = before + 1;
        let occurrence = Occurrence::new(push.task, push.index);
        // Statistics first: keys are admitted by what is known with this update.
        let of = |grads: &TableGrads<'_>| &self.tables[grads.table as usize];
        let (statistics, others): (Vec<_>, Vec<_>) =
            (push.tables.iter()).partition(|grads| of(grads).has_statistics());
        for grads in statistics.into_iter().chain(others) {
            of(grads).push(&self.tables, grads, learning_rate, version, occurrence)?;
            make_room(&self.tables);
            #[cfg(test)]
            tests::maybe_panic();
        }
        if !(push.dense.is_empty() && push.state.is_empty()) {
            let mut vectors = self.vectors.write();
            vectors.apply(push.dense, push.state, weight, learning_rate, version);
        }
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
