//! Reads the facts that the replicas of a checkpoint remembered beside rows.

use std::ops::Range;

use safetensors::Dtype;

use super::{Checkpoint, TensorReader};
use crate::checkpoint::format::{LifeNames, ReplicaEntry};
use crate::error::StoreError;
use crate::life::{Times, common};
use crate::route::{hash_slot_of, hash_slots_of};
use crate::table::Table;

/// Read what belongs to `slots` into the tables, and return the times of versions.
pub(super) fn read(
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
    let Some(file) = &entry.life else {
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
        let name = LifeNames::new(number).counts;
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
        let (name, width) = (LifeNames::new(number).sketch, table.sketch_cells());
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
    let names = LifeNames::new(number);
    let count = reader.len_of(&names.keys)?;
    let keys = reader.read::<u64>(&names.keys, Dtype::U64, &[count])?;
    let versions = reader.read::<u64>(&names.versions, Dtype::U64, &[count])?;
    let inside = |&key: &u64| slots.contains(&u32::from(hash_slot_of(key)));
    if versions.iter().any(|&v| v > last) || !keys.iter().all(inside) {
        return Err(reader.broken(
            "has keys outside the replica's slots, or versions later than its own; it is corrupt",
        ));
    }
    Ok((keys, versions))
}
