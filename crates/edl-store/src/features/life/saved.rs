//! What a checkpoint has of the life cycle beside rows: counts of keys without a row, and times of
//! versions.

use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;

use super::times::{Times, common};
use crate::checkpoint::{
    Checkpoint, FileEntry, Layout, PendingFile, ReplicaEntry, Source, TensorReader, of_table,
};
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;
use crate::route::{hash_slot_of, hash_slots_of, unhash};
use crate::table::Table;

/// Candidates that are copied under one taking of a stripe's lock.
const CHUNK_ROWS: usize = 2048;

// The tensors of one table.
const KEYS: &str = "candidates.keys";
const VERSIONS: &str = "candidates.versions";
const COUNTS: &str = "candidates.counts";
const SKETCH: &str = "sketch";

/// Write the file, if there is anything to remember.
pub(crate) fn write(
    source: &Source<'_>,
    dir: &Path,
) -> Result<Option<(PendingFile, FileEntry)>, StoreError> {
    let tables: Vec<(usize, &Table)> = source.tables.iter().enumerate().collect();
    let tables: Vec<_> = tables.into_iter().filter(|(_, t)| t.has_memory()).collect();
    let times: Vec<u64> = source
        .times
        .notes()
        .iter()
        .flat_map(|&(v, t)| [v, t])
        .collect();
    if tables.is_empty() && times.is_empty() {
        return Ok(None);
    }
    let num_hash_slots =
        source.placement.first_hash_slot(NUM_STRIPES) - source.placement.first_hash_slot(0);
    let mut layout = Layout::default();
    layout.add("times", Dtype::U64, vec![times.len() / 2, 2]);
    for &(number, table) in &tables {
        for what in [KEYS, VERSIONS] {
            let shape = vec![table.snapshot_candidates()];
            layout.add(of_table(number, what), Dtype::U64, shape);
        }
    }
    for &(number, table) in &tables {
        let shape = vec![table.snapshot_candidates()];
        layout.add(of_table(number, COUNTS), Dtype::U32, shape);
    }
    for &(number, table) in &tables {
        let shape = vec![num_hash_slots as usize, table.sketch_cells()];
        layout.add(of_table(number, SKETCH), Dtype::U8, shape);
    }
    let mut file = source.create(dir, "life", layout, None)?;
    file.write(0, bytemuck::cast_slice(&times))?;
    for (place, &(_, table)) in tables.iter().enumerate() {
        let counts = 1 + 2 * tables.len() + place;
        for stripe in 0..NUM_STRIPES {
            while let Some(found) = table.read_candidates(stripe, CHUNK_ROWS) {
                let keys: Vec<u64> = found.iter().map(|c| unhash(c.hash)).collect();
                let versions: Vec<u64> = found.iter().map(|c| c.version).collect();
                let numbers: Vec<u32> = found.iter().map(|c| c.count).collect();
                file.write(1 + 2 * place, bytemuck::cast_slice(&keys))?;
                file.write(2 + 2 * place, bytemuck::cast_slice(&versions))?;
                file.write(counts, bytemuck::cast_slice(&numbers))?;
            }
            file.write(counts + tables.len(), &table.snapshot_cells(stripe))?;
        }
    }
    let entry = file.finish(None)?;
    Ok(Some((file, entry)))
}

/// Read what belongs to `slots` into the tables, and return the times of versions.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    slots: &Range<u32>,
    tables: &[Table],
) -> Result<Times, StoreError> {
    let mut times = Vec::new();
    for entry in &checkpoint.entries {
        let own = hash_slots_of(entry.replica, entry.num_replicas);
        if own.start < slots.end && slots.start < own.end {
            times.push(read_replica(checkpoint, entry, own, tables)?);
        }
    }
    Ok(common(&times))
}

fn read_replica(
    checkpoint: &Checkpoint,
    entry: &ReplicaEntry,
    slots: Range<u32>,
    tables: &[Table],
) -> Result<Times, StoreError> {
    let remembered: Vec<(usize, &Table)> = tables
        .iter()
        .enumerate()
        .filter(|(_, table)| table.has_memory())
        .collect();
    let Some(file) = &entry.beside.life else {
        return match remembered.first() {
            None => Ok(Times::default()),
            Some((_, table)) => Err(checkpoint.broken(format!(
                "names no file of counts for replica {}, which table '{}' needs for admission",
                entry.replica,
                table.name()
            ))),
        };
    };
    let mut reader = TensorReader::open(&checkpoint.dir, file)?;
    let times = read_times(&mut reader, entry.version)?.counted_after(checkpoint.earlier);
    let mut found = Vec::new();
    for &(number, _) in &remembered {
        let (keys, mut versions) = read_candidates(&mut reader, number, entry.version, &slots)?;
        for version in &mut versions {
            *version = version.saturating_sub(checkpoint.earlier);
        }
        found.push((keys, versions));
    }
    for (&(number, table), (keys, versions)) in remembered.iter().zip(found) {
        let name = of_table(number, COUNTS);
        let counts = reader.read::<u32>(&name, Dtype::U32, &[keys.len()])?;
        let most = table.admission_count();
        if let Some(count) = counts.iter().find(|&&c| c == 0 || c >= most) {
            return Err(reader.broken(format!(
                "has a key without a row that was seen {count} times, expected 1 to {}; it is \
                 corrupt",
                most.saturating_sub(1)
            )));
        }
        if let Some(key) = table.restore_candidates(&keys, &versions, &counts) {
            return Err(reader.broken(format!(
                "has key {key} of table '{}' that was read before; it is corrupt",
                table.name()
            )));
        }
    }
    for &(number, table) in &remembered {
        let (name, width) = (of_table(number, SKETCH), table.sketch_cells());
        let cells = reader.read::<u8>(&name, Dtype::U8, &[slots.len(), width])?;
        if width > 0 {
            for (slot, cells) in slots.clone().zip(cells.chunks_exact(width)) {
                table.restore_sketch(slot, cells);
            }
        }
    }
    reader.finish()?;
    Ok(times)
}

fn read_times(reader: &mut TensorReader, last: u64) -> Result<Times, StoreError> {
    let count = reader.rows_of("times", 2)?;
    let flat = reader.read::<u64>("times", Dtype::U64, &[count, 2])?;
    let notes: Vec<(u64, u64)> = flat.as_chunks().0.iter().map(|&[v, t]| (v, t)).collect();
    let rises = notes.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1);
    if !rises || notes.last().is_some_and(|&(version, _)| version > last) {
        return Err(reader.broken("has times of versions out of order; it is corrupt"));
    }
    Ok(Times::restored(notes))
}

fn read_candidates(
    reader: &mut TensorReader,
    number: usize,
    last: u64,
    slots: &Range<u32>,
) -> Result<(Vec<u64>, Vec<u64>), StoreError> {
    let count = reader.len_of(&of_table(number, KEYS))?;
    let keys = reader.read::<u64>(&of_table(number, KEYS), Dtype::U64, &[count])?;
    let versions = reader.read::<u64>(&of_table(number, VERSIONS), Dtype::U64, &[count])?;
    let inside = |&key: &u64| slots.contains(&u32::from(hash_slot_of(key)));
    if versions.iter().any(|&v| v > last) || !keys.iter().all(inside) {
        return Err(reader.broken(
            "has keys outside the replica's slots, or versions later than its own; it is corrupt",
        ));
    }
    Ok((keys, versions))
}
