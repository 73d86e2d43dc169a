//! Flat vectors and watermarks, gathered from the files of other replicas.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;

use super::Checkpoint;
use super::tensors::TensorReader;
use crate::checkpoint::format::{FileEntry, MANIFEST, ReplicaEntry, broken};
use crate::error::StoreError;
use crate::route::dense_range;
use crate::tasks::{Watermark, Watermarks};
use crate::vectors::Values;

/// A range of a flat vector, gathered from the ranges of other replicas.
pub(super) struct Part {
    pub(super) whole: usize,
    pub(super) range: Range<usize>,
    pub(super) values: Vec<f32>,
}

impl Part {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        whole: Result<usize, StoreError>,
        replica: u32,
        num_replicas: u32,
    ) -> Result<Self, StoreError> {
        let whole = whole.map_err(|e| checkpoint.broken(e))?;
        let range = dense_range(whole, replica, num_replicas);
        // The model comes from a file: reserve no more than its vectors' files turn out to have.
        let on_disk: u64 = checkpoint
            .entries
            .iter()
            .flat_map(|entry| &entry.files)
            .filter(|file| file.slots.is_none())
            .map(|file| std::fs::metadata(checkpoint.dir.join(&file.name)).map_or(0, |m| m.len()))
            .sum();
        if range.len() as u64 * 4 > on_disk {
            return Err(checkpoint.broken(format!(
                "describes a vector of {whole} floats, but the files of vectors have {on_disk} \
                 bytes; one is missing, torn or of another checkpoint"
            )));
        }
        Ok(Self {
            whole,
            values: vec![0.0; range.len()],
            range,
        })
    }

    pub(super) fn overlaps(&self, other: &Range<usize>) -> bool {
        self.range.start < other.end && other.start < self.range.end
    }

    /// Return the overlap with `other`: where it lies here, and where it lies there.
    fn overlap(&self, other: &Range<usize>) -> (Range<usize>, Range<usize>) {
        let start = self.range.start.max(other.start);
        let end = self.range.end.min(other.end).max(start);
        let within = |range: &Range<usize>| start - range.start..end - range.start;
        if self.overlaps(other) {
            (within(&self.range), within(other))
        } else {
            (0..0, 0..0)
        }
    }
}

/// The contents of one replica's file of vectors.
pub(super) struct RangesOf {
    pub(super) dense: Range<usize>,
    pub(super) state: Range<usize>,
    pub(super) num_slots: usize,
}

pub(super) struct Gathered {
    pub(super) dense: Part,
    pub(super) slots: Vec<f32>,
    pub(super) state: Part,
    pub(super) rests: Vec<u64>,
}

impl Gathered {
    pub(super) fn values(self) -> Values {
        Values {
            dense: Arc::new(self.dense.values),
            slots: Arc::new(self.slots),
            state: Arc::new(self.state.values),
            rests: Arc::new(self.rests),
        }
    }

    /// Copy what overlaps from a replica's file; return its watermarks.
    pub(super) fn read(
        &mut self,
        dir: &Path,
        entry: &ReplicaEntry,
        of: &RangesOf,
    ) -> Result<HashMap<u64, Watermark>, StoreError> {
        let files = entry.files.iter().find(|file| file.slots.is_none());
        let file = files.ok_or_else(|| broken(&dir.join(MANIFEST), "names no file of vectors"))?;
        let mut reader = TensorReader::open(dir, file)?;
        let tasks = reader.rows_of("tasks", 4)?;
        let tasks = reader.read::<u64>("tasks", Dtype::U64, &[tasks, 4])?;
        let dense = reader.read::<f32>("dense", Dtype::F32, &[of.dense.len()])?;
        // Without weights there are no slots, for any optimizer.
        let num_slots = if dense.is_empty() { 0 } else { of.num_slots };
        let shape = [num_slots, of.dense.len()];
        let slots = reader.read::<f32>("dense.slots", Dtype::F32, &shape)?;
        let state = reader.read::<f32>("state", Dtype::F32, &[of.state.len()])?;
        reader.finish()?;
        // Each replica counts for what it holds; a variable may lie on several.
        self.rests
            .resize(self.rests.len().max(entry.rests.len()), 0);
        for (own, theirs) in self.rests.iter_mut().zip(&entry.rests) {
            *own = theirs.max(own).to_owned();
        }

        let (here, there) = self.dense.overlap(&of.dense);
        self.dense.values[here.clone()].copy_from_slice(&dense[there.clone()]);
        let own = self.slots.chunks_exact_mut(self.dense.values.len().max(1));
        for (own, slot) in own.zip(slots.chunks_exact(of.dense.len().max(1))) {
            own[here.clone()].copy_from_slice(&slot[there.clone()]);
        }
        let (here, there) = self.state.overlap(&of.state);
        self.state.values[here].copy_from_slice(&state[there]);
        watermarks(dir, file, &tasks)
    }
}

fn watermarks(
    dir: &Path,
    file: &FileEntry,
    tasks: &[u64],
) -> Result<HashMap<u64, Watermark>, StoreError> {
    let mut watermarks = HashMap::new();
    for task in tasks.chunks_exact(4) {
        let small = |value: u64| {
            u32::try_from(value).map_err(|_| {
                let problem = format!("has {value} as a task's lease or index; it is corrupt");
                broken(&dir.join(&file.name), problem)
            })
        };
        let watermark = Watermark {
            lease: small(task[1])?,
            next_index: small(task[2])?,
            num_records: task[3],
        };
        watermarks.insert(task[0], watermark);
    }
    Ok(watermarks)
}

/// Return for each task the lowest watermark of all replicas, under the newest lease: what one
/// of them lacks must come again.
pub(super) fn lowest(replicas: Vec<HashMap<u64, Watermark>>) -> Watermarks {
    let mut tasks: HashMap<u64, u32> = HashMap::new();
    for (&task, watermark) in replicas.iter().flatten() {
        let lease = tasks.entry(task).or_default();
        *lease = watermark.lease.max(*lease);
    }
    let lowest = |task: u64| {
        let of =
            |replica: &HashMap<u64, Watermark>| replica.get(&task).copied().unwrap_or_default();
        replicas.iter().map(of).min_by_key(|w| w.next_index)
    };
    tasks
        .into_iter()
        .map(|(task, lease)| {
            let watermark = lowest(task).unwrap_or_default();
            (task, Watermark { lease, ..watermark })
        })
        .collect()
}
