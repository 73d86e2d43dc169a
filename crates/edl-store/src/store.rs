//! The store: the answers of a replica, and the locks that it takes for them.
//!
//! Locks are taken in this order: the update lock (shared by updates, exclusive for the instant of
//! a checkpoint), the task's watermark, then one stripe or the vectors at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::budget::Budget;
use crate::checkpoint::LastWhole;
use crate::cold::{ColdRoom, Disk};
use crate::error::StoreError;
use crate::features::life::{Times, check_statistics};
use crate::placement::Placement;
use crate::progress::{Progress, unseen};
use crate::redo::{Change as Noting, Log};
use crate::route::dense_range;
use crate::spec::ModelSpec;
use crate::stripe::Chunk;
use crate::table::{PullMode, Table, make_room};
use crate::tasks::{TaskAudit, Tasks};
use crate::treatment::Treatment;
use crate::vectors::{DenseRule, Vectors, check_len};

use self::cut::Marks;
use self::first_rows::FirstRows;

pub use self::counters::{STALENESS_BUCKETS, Staleness, Stats};
pub use self::cut::{Cut, Piece};
pub use self::moving::{MovedMarks, RowsToPut};
pub use self::names::Named;
pub use self::redo::Redone;
pub use self::round::RoundGradient;
pub use self::update::{Applied, Push};

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
mod update;

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
    /// The first lease of any task that is let in.
    first_lease: AtomicU32,
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
            first_lease: AtomicU32::new(0),
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

    /// From now on, let in no lease below this one, of whichever task: what was trained before it
    /// may be missing here.
    pub fn refuse_leases_before(&self, first: u32) {
        self.first_lease.store(first, Ordering::Relaxed);
    }

    /// The first lease of any task that is let in.
    pub fn first_lease(&self) -> u32 {
        self.first_lease.load(Ordering::Relaxed)
    }

    /// Refuse a lease of before.
    fn let_in(&self, task: u64, lease: u32) -> Result<(), StoreError> {
        let first = self.first_lease();
        if lease < first {
            return Err(StoreError::EarlierLease { task, lease, first });
        }
        Ok(())
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
        let tables = Table::all_of(&spec, placement, &self.budget)?;
        check_statistics(&tables)?;
        let mut first_rows = self.first_rows.lock();
        first_rows::check_given(&first_rows, &spec, placement)?;
        first_rows::put(&first_rows, &spec, &tables, progress)?;
        first_rows.clear();
        first_rows.shrink_to_fit();
        let model = Model::new(
            spec.clone(),
            placement,
            tables,
            Vectors::new(rule, dense, state),
        );
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
    /// [`StoreError::StaleLease`] if a newer lease has begun, [`StoreError::EarlierLease`] if this
    /// one is of before.
    pub fn begin_task(&self, task: u64, lease: u32) -> Result<u32, StoreError> {
        let tasks = &self.declared("tasks begin")?.tasks;
        self.let_in(task, lease)?;
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
    /// Return a model that nobody has updated.
    fn new(
        spec: Arc<ModelSpec>,
        placement: Placement,
        tables: Vec<Table>,
        vectors: Vectors,
    ) -> Self {
        Self {
            spec: RwLock::new(spec),
            restored: AtomicBool::new(false),
            placement,
            tables,
            vectors: RwLock::new(vectors),
            begun: AtomicU64::new(0),
            version: AtomicU64::new(0),
            tasks: Tasks::default(),
            staleness: Mutex::default(),
            times: Mutex::default(),
        }
    }

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
}
