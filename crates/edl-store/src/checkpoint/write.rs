//! Writes the files of one replica.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use safetensors::Dtype;

use crate::budget::Budget;
use crate::checkpoint::base::LastWhole;
use crate::checkpoint::file::{PendingFile, laid_out, publish, unwritable};
use crate::checkpoint::format::{
    Base, FORMAT, FileEntry, Layout, ReplicaEntry, broken, file_name, of_table,
};
use crate::checkpoint::pace::Pace;
use crate::error::StoreError;
use crate::features::life::Times;
use crate::features::saved;
use crate::placement::{NUM_STRIPES, Placement};
use crate::progress::Progress;
use crate::spec::ModelSpec;
use crate::stripe::{SavedRows, Since};
use crate::table::Table;
use crate::tasks::Watermarks;
use crate::vectors::Values;

/// Aim for the size of a file of rows.
const FILE_BYTES: usize = 64 << 20;

/// The contents of a replica at the instant of the checkpoint.
pub(crate) struct Source<'a> {
    pub(crate) replica: u32,
    pub(crate) num_replicas: u32,
    pub(crate) version: u64,
    pub(crate) model: Arc<ModelSpec>,
    pub(crate) placement: Placement,
    /// The version, as updates raise it meanwhile.
    pub(crate) updates: &'a AtomicU64,
    /// The budget that counts copied rows.
    pub(crate) budget: &'a Budget,
    /// Told with each piece that is written.
    pub(crate) progress: Progress<'a>,
    /// The tables; their snapshot has begun.
    pub(crate) tables: &'a [Table],
    /// Rows of the snapshot, by table and stripe.
    pub(crate) rows: Vec<Vec<usize>>,
    pub(crate) vectors: Values,
    pub(crate) watermarks: Watermarks,
    /// Tasks before it are forgotten.
    pub(crate) first_task: u64,
    pub(crate) times: Times,
    /// Names that came at this version or later are of it; earlier ones are in the base.
    pub(crate) names_since: u64,
    /// How often rows had been removed.
    pub(crate) removals: u64,
    /// Only rows that have changed since are in the snapshot, if given.
    pub(crate) base: Option<Base>,
}

impl Source<'_> {
    /// Create a file for some tensors, with what it is noted in it.
    pub(crate) fn create(
        &self,
        dir: &Path,
        what: &str,
        layout: Layout,
        slots: Option<[u32; 2]>,
    ) -> Result<PendingFile, StoreError> {
        let mut notes = vec![
            ("format", format!("elasticdl-store {FORMAT}")),
            ("replica", self.replica.to_string()),
            ("num_replicas", self.num_replicas.to_string()),
            ("version", self.version.to_string()),
        ];
        notes.extend(slots.map(|[first, end]| ("slots", format!("{first}-{end}"))));
        let (lens, header) = laid_out(dir, layout, &notes)?;
        let name = file_name(self.replica, self.num_replicas, what);
        PendingFile::create(dir, &name, &lens, &header)
    }

    /// Return the first and the last-but-one hash slot of some stripes.
    pub(crate) fn slots(&self, stripes: &Range<usize>) -> [u32; 2] {
        [stripes.start, stripes.end].map(|stripe| self.placement.first_hash_slot(stripe))
    }

    /// The snapshot has ended before its time, since updates could wait for the disk no longer.
    fn check_not_given_up(&self) -> Result<(), StoreError> {
        if self.budget.is_given_up() {
            return Err(broken(
                Path::new("its files"),
                "have not been taken by the disk for too long while updates waited; training goes \
                 on without it",
            ));
        }
        Ok(())
    }

    /// Note the facts that a later checkpoint of the changes since this one will need.
    pub(crate) fn last_whole(&self, files: &[FileEntry]) -> LastWhole {
        let since = |&rows: &usize| Since {
            version: self.version,
            rows: rows as u32,
        };
        let tables = self.rows.iter();
        LastWhole {
            files: files.to_vec(),
            version: self.version,
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
    (source.progress)();
    let (row_files, entries) = match source.base {
        None => write_all_rows(source, dir)?,
        Some(_) => write_changed_rows(source, dir)?,
    };
    pending.extend(row_files);
    files.extend(entries);
    let beside = saved::write(source, dir, &mut pending)?;
    source.check_not_given_up()?;
    publish(dir, pending, source.progress)?;
    Ok(ReplicaEntry {
        replica: source.replica,
        num_replicas: source.num_replicas,
        version: source.version,
        model: ModelSpec::clone(&source.model),
        files,
        beside,
        base: source.base.clone(),
        rests: source.vectors.rests.to_vec(),
        first_task: source.first_task,
    })
}

/// Split the stripes into files of about equal size: one for a small store, at most one a stripe.
pub(crate) fn parts_of(source: &Source<'_>) -> Vec<Range<usize>> {
    let tables = source.tables.iter().zip(&source.rows);
    let total: usize = tables.map(|(table, rows)| table_bytes(table, rows)).sum();
    let count = total.div_ceil(FILE_BYTES).clamp(1, NUM_STRIPES);
    (0..count)
        .map(|i| i * NUM_STRIPES / count..(i + 1) * NUM_STRIPES / count)
        .collect()
}

/// Return the bytes of some rows of a table in a file.
fn table_bytes(table: &Table, rows: &[usize]) -> usize {
    rows.iter().sum::<usize>() * table.saved_bytes()
}

fn write_vectors(source: &Source<'_>, dir: &Path) -> Result<(PendingFile, FileEntry), StoreError> {
    let Values {
        dense,
        slots,
        state,
        rests: _,
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
    let mut file = source.create(dir, "vectors", layout, None)?;
    file.write(0, bytemuck::cast_slice(&tasks))?;
    for (tensor, values) in [dense, slots, state].into_iter().enumerate() {
        file.write(tensor + 1, bytemuck::cast_slice(values))?;
    }
    let entry = file.finish(None)?;
    Ok((file, entry))
}

/// The indices of the tensors of one table in a file.
struct Places {
    /// Keys; versions come next, and the columns that features keep.
    first: usize,
    num_columns: usize,
    rows: usize,
}

/// A file of rows that is being written.
struct Part {
    stripes: Range<usize>,
    /// First and last-but-one.
    slots: [u32; 2],
    /// For each table, the indices of its tensors.
    places: Vec<Places>,
    file: PendingFile,
}

impl Part {
    /// Create a file for so many rows of each table.
    fn create(
        source: &Source<'_>,
        dir: &Path,
        number: usize,
        stripes: Range<usize>,
        counts: &[usize],
    ) -> Result<Self, StoreError> {
        let mut layout = Layout::default();
        let (mut places, mut next) = (Vec::new(), 0);
        for (number, (table, &count)) in source.tables.iter().zip(counts).enumerate() {
            let columns = table.columns();
            for what in ["keys", "versions"].iter().chain(columns) {
                layout.add(of_table(number, what), Dtype::U64, vec![count]);
            }
            places.push(Places {
                first: next,
                num_columns: columns.len(),
                rows: number,
            });
            next += 2 + columns.len();
        }
        // The rows of all tables come last.
        for places in &mut places {
            places.rows += next;
        }
        for (number, (table, &count)) in source.tables.iter().zip(counts).enumerate() {
            let shape = vec![count, table.width()];
            layout.add(of_table(number, "rows"), Dtype::F32, shape);
        }
        let slots = source.slots(&stripes);
        Ok(Self {
            stripes,
            slots,
            places,
            file: source.create(dir, &format!("rows-{number:02}"), layout, Some(slots))?,
        })
    }

    /// Write rows of a table, which are gone then.
    fn write(&mut self, table: usize, saved: &mut SavedRows) -> Result<(), StoreError> {
        if saved.len() > 0 {
            let (places, file) = (&self.places[table], &mut self.file);
            file.write(places.first, bytemuck::cast_slice(&saved.keys))?;
            file.write(places.first + 1, bytemuck::cast_slice(&saved.versions))?;
            let num_columns = places.num_columns;
            for column in 0..num_columns {
                let words = saved.words.iter().skip(column).step_by(num_columns);
                let words: Vec<u64> = words.copied().collect();
                file.write(places.first + 2 + column, bytemuck::cast_slice(&words))?;
            }
            file.write(places.rows, bytemuck::cast_slice(&saved.rows))?;
            saved.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(PendingFile, FileEntry), StoreError> {
        let entry = self.file.finish(Some(self.slots))?;
        Ok((self.file, entry))
    }
}

type Written = (Vec<PendingFile>, Vec<FileEntry>);

/// Write all rows, part by part in the order of the hash.
///
/// All files are there from the beginning: rows of later parts that an update is about to change
/// are copied by it, and written before there are many.
fn write_all_rows(source: &Source<'_>, dir: &Path) -> Result<Written, StoreError> {
    let mut parts = Vec::new();
    for (number, stripes) in parts_of(source).into_iter().enumerate() {
        let counts = source
            .rows
            .iter()
            .map(|rows| rows[stripes.clone()].iter().sum());
        let counts: Vec<usize> = counts.collect();
        parts.push(Part::create(source, dir, number, stripes, &counts)?);
    }
    let (mut pacer, mut saved) = (Pacer::new(source), SavedRows::default());
    let mut written = Written::default();
    let mut copied = 0;
    let mut parts = parts.into_iter();
    while let Some(mut part) = parts.next() {
        for stripe in part.stripes.clone() {
            for (number, table) in source.tables.iter().enumerate() {
                let mut more = true;
                while more {
                    pacer.begin()?;
                    more = table.read_snapshot(stripe, &mut saved)?;
                    pacer.count(&saved, table);
                    part.write(number, &mut saved)?;
                    copied = (copied + 1) % NUM_STRIPES;
                    let others = std::iter::once(&mut part).chain(parts.as_mut_slice());
                    write_copies(source, others, copied, &mut saved, &mut pacer)?;
                    pacer.rest();
                }
            }
        }
        source.check_not_given_up()?;
        let (file, entry) = part.finish()?;
        written.0.push(file);
        written.1.push(entry);
    }
    Ok(written)
}

/// Write the rows that were copied in a stripe, if it belongs to one of `parts`.
fn write_copies<'a>(
    source: &Source<'_>,
    mut parts: impl Iterator<Item = &'a mut Part>,
    stripe: usize,
    saved: &mut SavedRows,
    pacer: &mut Pacer<'_>,
) -> Result<(), StoreError> {
    let Some(part) = parts.find(|part| part.stripes.contains(&stripe)) else {
        return Ok(());
    };
    for (number, table) in source.tables.iter().enumerate() {
        table.take_saved(stripe, saved);
        pacer.count(saved, table);
        part.write(number, saved)?;
    }
    Ok(())
}

/// Write the rows that have changed, part by part. How many they are is known when all of a part
/// have been looked at, so they are collected: a part fits the memory.
fn write_changed_rows(source: &Source<'_>, dir: &Path) -> Result<Written, StoreError> {
    let (mut pacer, mut saved) = (Pacer::new(source), SavedRows::default());
    let mut written = Written::default();
    for (part, stripes) in parts_of(source).into_iter().enumerate() {
        let mut changed = Vec::new();
        for table in source.tables {
            let mut all = SavedRows::default();
            for stripe in stripes.clone() {
                let mut more = true;
                while more {
                    pacer.begin()?;
                    more = table.read_snapshot(stripe, &mut saved)?;
                    pacer.count(&saved, table);
                    all.append(&mut saved);
                    pacer.rest();
                }
            }
            changed.push(all);
        }
        source.check_not_given_up()?;
        let counts: Vec<usize> = changed.iter().map(SavedRows::len).collect();
        let mut part = Part::create(source, dir, part, stripes, &counts)?;
        for (number, rows) in changed.iter_mut().enumerate() {
            part.write(number, rows)?;
        }
        source.check_not_given_up()?;
        let (file, entry) = part.finish()?;
        written.0.push(file);
        written.1.push(entry);
    }
    Ok(written)
}

/// Rests between pieces of work, as `Pace` has it.
struct Pacer<'a> {
    source: &'a Source<'a>,
    pace: Pace,
    began: Instant,
    /// Bytes of rows that there are, and of those that were read.
    total: usize,
    done: usize,
}

impl<'a> Pacer<'a> {
    fn new(source: &'a Source<'a>) -> Self {
        let bytes = source.tables.iter().zip(&source.rows);
        Self {
            source,
            pace: Pace::new(source.version),
            began: Instant::now(),
            total: bytes.map(|(table, rows)| table_bytes(table, rows)).sum(),
            done: 0,
        }
    }

    /// Begin a piece; those before are written.
    ///
    /// # Errors
    /// Updates have waited for the disk, and do so no longer.
    fn begin(&mut self) -> Result<(), StoreError> {
        self.began = Instant::now();
        (self.source.progress)();
        self.source.check_not_given_up()
    }

    fn count(&mut self, saved: &SavedRows, table: &Table) {
        self.done += table_bytes(table, &[saved.len()]);
    }

    /// Rest, unless there is too much to be written already.
    fn rest(&mut self) {
        if self.source.budget.saved_is_large() {
            return;
        }
        let now = Instant::now();
        let share = self.done as f64 / self.total.max(1) as f64;
        let version = self.source.updates.load(Ordering::Relaxed);
        let rest = self.pace.rest(now - self.began, share, version, now);
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
}
