//! Writes the files of one replica.

use std::path::Path;

use safetensors::Dtype;

use crate::checkpoint::base::LastWhole;
use crate::checkpoint::file::{PendingFile, laid_out, publish, unwritable};
use crate::checkpoint::format::{
    Base, FORMAT, FileEntry, Layout, ReplicaEntry, TableNames, file_name,
};
use crate::error::StoreError;
use crate::life::Times;
use crate::shard::{SavedRows, Since};
use crate::spec::ModelSpec;
use crate::table::{NUM_SHARDS, Placement, Table};
use crate::tasks::Watermarks;
use crate::vectors::Values;

mod life;

/// Rows that are copied under one taking of a shard's lock.
const CHUNK_ROWS: usize = 2048;

/// Aim for the size of a file of rows.
const FILE_BYTES: usize = 64 << 20;

/// What a replica holds at the instant of the checkpoint.
pub(crate) struct Source<'a> {
    pub(crate) replica: u32,
    pub(crate) num_replicas: u32,
    pub(crate) version: u64,
    pub(crate) model: &'a ModelSpec,
    pub(crate) placement: Placement,
    /// With a snapshot begun.
    pub(crate) tables: &'a [Table],
    /// Rows of the snapshot, by table and shard.
    pub(crate) rows: Vec<Vec<usize>>,
    pub(crate) vectors: Values,
    pub(crate) watermarks: Watermarks,
    pub(crate) times: Times,
    /// How often rows had been removed.
    pub(crate) removals: u64,
    /// Only rows that have changed since are in the snapshot, if given.
    pub(crate) base: Option<Base>,
}

impl Source<'_> {
    /// Note what is needed to write a later checkpoint of what has changed since this one.
    pub(crate) fn last_whole(&self, files: &[FileEntry]) -> LastWhole {
        let since = |&rows: &usize| Since {
            version: self.version,
            rows: rows as u32,
        };
        let tables = self.rows.iter();
        LastWhole {
            files: files.to_vec(),
            removals: self.removals,
            since: tables
                .map(|rows| rows.iter().map(since).collect())
                .collect(),
        }
    }
}

/// Write all files of a replica into `dir`, which is created; either all appear or none.
pub(crate) fn write(source: &Source<'_>, dir: &Path) -> Result<ReplicaEntry, StoreError> {
    std::fs::create_dir_all(dir).map_err(|e| unwritable(dir, &e))?;
    let mut pending = Vec::new();
    let mut files = Vec::new();
    let (file, entry) = write_vectors(source, dir)?;
    pending.push(file);
    files.push(entry);
    for shards in parts(source) {
        let (file, entry) = write_rows(source, dir, shards, files.len() - 1)?;
        pending.push(file);
        files.push(entry);
    }
    let (file, life) = life::write(source, dir)?.unzip();
    pending.extend(file);
    publish(dir, pending)?;
    Ok(ReplicaEntry {
        replica: source.replica,
        num_replicas: source.num_replicas,
        version: source.version,
        model: source.model.clone(),
        files,
        life,
        base: source.base.clone(),
    })
}

/// Split the shards into files of about equal size: one for a small store, at most one a shard.
fn parts(source: &Source<'_>) -> Vec<std::ops::Range<usize>> {
    let bytes = |(table, rows): (&Table, &Vec<usize>)| {
        rows.iter().sum::<usize>() * (16 + 4 * table.width())
    };
    let total: usize = source.tables.iter().zip(&source.rows).map(bytes).sum();
    let count = total.div_ceil(FILE_BYTES).clamp(1, NUM_SHARDS);
    (0..count)
        .map(|i| i * NUM_SHARDS / count..(i + 1) * NUM_SHARDS / count)
        .collect()
}

fn notes(source: &Source<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("format", format!("elasticdl-store {FORMAT}")),
        ("replica", source.replica.to_string()),
        ("num_replicas", source.num_replicas.to_string()),
        ("version", source.version.to_string()),
    ]
}

fn write_vectors(source: &Source<'_>, dir: &Path) -> Result<(PendingFile, FileEntry), StoreError> {
    let Values {
        dense,
        slots,
        state,
    } = &source.vectors;
    let num_slots = slots.len().checked_div(dense.len()).unwrap_or(0);
    let tasks: Vec<u64> = source
        .watermarks
        .iter()
        .flat_map(|&(task, w)| {
            [
                task,
                u64::from(w.lease),
                u64::from(w.next_index),
                w.num_records,
            ]
        })
        .collect();
    let mut layout = Layout::default();
    layout.add("tasks", Dtype::U64, vec![source.watermarks.len(), 4]);
    layout.add("dense", Dtype::F32, vec![dense.len()]);
    layout.add("dense.slots", Dtype::F32, vec![num_slots, dense.len()]);
    layout.add("state", Dtype::F32, vec![state.len()]);
    let (lens, header) = laid_out(dir, layout, &notes(source))?;
    let name = file_name(source.replica, source.num_replicas, "vectors");
    let mut file = PendingFile::create(dir, &name, &lens, &header)?;
    file.write(0, bytemuck::cast_slice(&tasks))?;
    for (tensor, values) in [dense, slots, state].into_iter().enumerate() {
        file.write(tensor + 1, bytemuck::cast_slice(values))?;
    }
    let entry = file.finish(None)?;
    Ok((file, entry))
}

/// Write the rows of some shards, all tables.
fn write_rows(
    source: &Source<'_>,
    dir: &Path,
    shards: std::ops::Range<usize>,
    part: usize,
) -> Result<(PendingFile, FileEntry), StoreError> {
    // How many rows have changed is known when all have been looked at.
    let changed = source.base.as_ref().map(|_| changed_rows(source, &shards));
    let counts: Vec<usize> = match &changed {
        Some(tables) => tables.iter().map(|rows| rows.keys.len()).collect(),
        None => {
            let counts = source.rows.iter();
            counts
                .map(|rows| rows[shards.clone()].iter().sum())
                .collect()
        }
    };
    let mut layout = Layout::default();
    for (table, &count) in counts.iter().enumerate() {
        let names = TableNames::new(table);
        layout.add(names.keys, Dtype::U64, vec![count]);
        layout.add(names.versions, Dtype::U64, vec![count]);
    }
    for (number, (table, &count)) in source.tables.iter().zip(&counts).enumerate() {
        let names = TableNames::new(number);
        layout.add(names.rows, Dtype::F32, vec![count, table.width()]);
    }
    let slots = [
        source.placement.first_slot(shards.start),
        source.placement.first_slot(shards.end),
    ];
    let mut notes = notes(source);
    notes.push(("slots", format!("{}-{}", slots[0], slots[1])));
    let (lens, header) = laid_out(dir, layout, &notes)?;
    let what = format!("rows-{part:02}");
    let name = file_name(source.replica, source.num_replicas, &what);
    let mut file = PendingFile::create(dir, &name, &lens, &header)?;
    let mut write = |number: usize, saved: &SavedRows| {
        file.write(2 * number, bytemuck::cast_slice(&saved.keys))?;
        file.write(2 * number + 1, bytemuck::cast_slice(&saved.versions))?;
        let rows = 2 * source.tables.len() + number;
        file.write(rows, bytemuck::cast_slice(&saved.rows))
    };
    match changed {
        Some(tables) => {
            for (number, saved) in tables.iter().enumerate() {
                write(number, saved)?;
            }
        }
        None => {
            for (number, table) in source.tables.iter().enumerate() {
                for shard in shards.clone() {
                    while let Some(saved) = table.read_snapshot(shard, CHUNK_ROWS) {
                        write(number, &saved)?;
                    }
                }
            }
        }
    }
    let entry = file.finish(Some(slots))?;
    Ok((file, entry))
}

/// Return what has changed in some shards, by table: of one file, so it fits the memory.
fn changed_rows(source: &Source<'_>, shards: &std::ops::Range<usize>) -> Vec<SavedRows> {
    let changed = |table: &Table| {
        let mut all = SavedRows::empty();
        for shard in shards.clone() {
            while let Some(saved) = table.read_snapshot(shard, CHUNK_ROWS) {
                all.append(saved);
            }
        }
        all
    };
    source.tables.iter().map(changed).collect()
}
