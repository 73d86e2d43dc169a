//! A store on disk, and back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Model, Store};
use crate::checkpoint::{self, Base, LastWhole, Parts, Restored, Wanted};
use crate::cold::ColdRoom;
use crate::error::StoreError;
use crate::placement::Placement;
use crate::progress::{Progress, unseen};
use crate::table::Table;
use crate::tasks::Tasks;

impl Store {
    /// Write the contents of this replica at one instant into files in `dir`, which is created;
    /// return its manifest entry as JSON.
    ///
    /// The checkpoint may hold only the rows that have changed since a base. This is so if
    /// `dir/base.json` holds `{"base": FOLDER}`, and `../FOLDER` is the last checkpoint that this
    /// store wrote with all its rows. The entry then names the base.
    ///
    /// Updates go on meanwhile, and are not part of the checkpoint. The checkpoint is valid once
    /// `dir/manifest.json` holds `{"format": 1, "replicas": [entry, ...]}` of all replicas.
    ///
    /// # Errors
    /// [`StoreError::Checkpoint`] if a file cannot be written; no file is left then.
    pub fn checkpoint(&self, dir: &Path) -> Result<String, StoreError> {
        self.checkpoint_showing(dir, &unseen)
    }

    /// The same, after an earlier one that is still being written, which is waited for.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`]; also if the earlier one takes longer.
    pub fn checkpoint_within(&self, dir: &Path, wait: Duration) -> Result<String, StoreError> {
        self.write_checkpoint(dir, wait, &unseen)
    }

    /// The same, telling of each piece that is written.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`]; also if an earlier one is still being written.
    pub fn checkpoint_showing(
        &self,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<String, StoreError> {
        self.write_checkpoint(dir, Duration::ZERO, progress)
    }

    fn write_checkpoint(
        &self,
        dir: &Path,
        wait: Duration,
        progress: Progress<'_>,
    ) -> Result<String, StoreError> {
        let model = self.declared("a checkpoint is written")?;
        let mut last = self.checkpointing.try_lock_for(wait).ok_or_else(|| {
            let problem = "is not begun, since this replica still writes an earlier one; does the \
                           disk of that one answer?";
            StoreError::Checkpoint {
                path: dir.to_owned(),
                problem: problem.to_owned(),
            }
        })?;
        let folder = dir.parent().unwrap_or(dir).to_owned();
        let base = checkpoint::wished_base(dir, self.replica, last.get(&folder))?;
        let snapshot = Snapshot { model };
        let source = self.mark(&snapshot, dir, base, last.get(&folder), progress)?;
        let entry = checkpoint::write(&source, dir)?;
        if source.base.is_none() {
            last.insert(folder, source.last_whole(&entry.files));
        }
        serde_json::to_string(&entry).map_err(|e| StoreError::Checkpoint {
            path: dir.to_owned(),
            problem: format!("cannot be described: {e}"),
        })
    }

    /// Mark one instant, between two updates, for a checkpoint.
    fn mark<'a>(
        &'a self,
        snapshot: &Snapshot<'a>,
        dir: &Path,
        base: Option<Base>,
        last: Option<&LastWhole>,
        progress: Progress<'a>,
    ) -> Result<checkpoint::Source<'a>, StoreError> {
        let model = snapshot.model;
        let _updates = self.updates.write();
        self.check_whole()?;
        let version = model.version();
        if let Some(log) = self.redo_log.get() {
            log.begin_segment(dir, version);
        }
        self.budget.begin_snapshot();
        let tables = model.tables.iter().enumerate();
        let removals = self.removals.load(Ordering::Relaxed);
        let last = last.filter(|last| base.is_some() && last.removals == removals);
        Ok(checkpoint::Source {
            base: base.filter(|_| last.is_some()),
            names_since: last.map_or(0, |last| last.version),
            removals,
            replica: self.replica,
            num_replicas: self.num_replicas,
            version,
            model: model.spec.read().clone(),
            placement: model.placement,
            updates: &model.version,
            budget: &self.budget,
            progress,
            tables: &model.tables,
            rows: tables
                .map(|(number, table)| {
                    let since = last.map(|last| &last.since[number][..]);
                    table.begin_snapshot(version, since)
                })
                .collect(),
            vectors: model.vectors.read().values(),
            watermarks: model.tasks.all(),
            first_task: model.tasks.first(),
            times: model.times.lock().clone(),
        })
    }

    /// Load the part of `replica` from a checkpoint that any number of replicas wrote.
    ///
    /// With `keep_watermarks`, tasks go on at the checkpoint's watermarks; if the number of
    /// replicas differs, at the lowest watermark of all. Otherwise a new job starts from the
    /// parameters, and counts the periods of statistics from 0. The version stays in both cases.
    ///
    /// # Errors
    /// [`StoreError::Checkpoint`] for files that are missing, torn, corrupt or foreign, or that do
    /// not fit each other; the error names the file.
    pub fn restore(
        checkpoint: &Path,
        replica: u32,
        num_replicas: u32,
        keep_watermarks: bool,
    ) -> Result<Self, StoreError> {
        Self::restore_showing(
            checkpoint,
            replica,
            num_replicas,
            keep_watermarks,
            None,
            &unseen,
        )
    }

    /// The same, telling of each piece that is read. Args: `room`, as [`Store::on_disk`] has it.
    ///
    /// # Errors
    /// Those of [`Store::restore`], and a folder that cannot be made.
    pub fn restore_showing(
        checkpoint: &Path,
        replica: u32,
        num_replicas: u32,
        keep_watermarks: bool,
        room: Option<&ColdRoom>,
        progress: Progress<'_>,
    ) -> Result<Self, StoreError> {
        let read = |wanted: &Wanted<'_>| checkpoint::read(checkpoint, wanted);
        let store = Self::maybe_on_disk(replica, num_replicas, room)?;
        store.reading(keep_watermarks, progress, read)
    }

    /// Load a part of a model, or both parts from two checkpoints, for a new job.
    ///
    /// # Errors
    /// Those of [`Store::restore`].
    pub fn restore_parts(
        parts: Parts<'_>,
        replica: u32,
        num_replicas: u32,
        room: Option<&ColdRoom>,
        progress: Progress<'_>,
    ) -> Result<Self, StoreError> {
        let read = |wanted: &Wanted<'_>| checkpoint::read_parts(parts, wanted);
        let store = Self::maybe_on_disk(replica, num_replicas, room)?;
        store.reading(false, progress, read)
    }

    fn maybe_on_disk(
        replica: u32,
        num_replicas: u32,
        room: Option<&ColdRoom>,
    ) -> Result<Self, StoreError> {
        match room {
            None => Ok(Self::new(replica, num_replicas)),
            Some(room) => Self::on_disk(replica, num_replicas, room),
        }
    }

    /// Return this store, which is empty, with what `read` gives it.
    fn reading(
        self,
        keep_watermarks: bool,
        progress: Progress<'_>,
        read: impl FnOnce(&Wanted<'_>) -> Result<Restored, StoreError>,
    ) -> Result<Self, StoreError> {
        let store = self;
        let (replica, num_replicas) = (store.replica, store.num_replicas);
        let restored = read(&Wanted {
            replica,
            num_replicas,
            keep_watermarks,
            budget: &store.budget,
            progress,
        })?;
        if !keep_watermarks {
            restored.tables.iter().for_each(Table::begin_periods);
        }
        let spec = Arc::new(restored.model);
        let placement = Placement::new(replica, num_replicas)?;
        let model = Model {
            restored: AtomicBool::new(true),
            begun: AtomicU64::new(restored.version),
            version: AtomicU64::new(restored.version),
            tasks: Tasks::new(restored.watermarks),
            times: Mutex::new(restored.times),
            ..Model::new(spec.clone(), placement, restored.tables, restored.vectors)
        };
        model.tasks.forget_before(restored.first_task);
        model.treat(&spec, &store)?;
        store.lost_rows().map_or(Ok(()), Err)?;
        // No other thread has the store yet.
        let _ = store.model.set(model);
        Ok(store)
    }
}

/// Ends the snapshot of all tables when dropped, whatever became of it.
pub(super) struct Snapshot<'a> {
    pub(super) model: &'a Model,
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        for table in &self.model.tables {
            table.end_snapshot();
        }
    }
}
