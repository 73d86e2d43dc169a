//! The strings that keys were made of.

use std::ops::Range;

use safetensors::Dtype;

use super::{Checkpoint, TensorReader};
use crate::checkpoint::format::{FileEntry, NamesNames, ReplicaEntry};
use crate::error::StoreError;
use crate::names::MAX_NAME_BYTES;
use crate::route::hash_slot_of;
use crate::table::{SavedNames, Table};

/// Read the names of keys in `slots` into the tables, which have their rows already.
pub(super) fn read(
    checkpoint: &Checkpoint,
    slots: &Range<u32>,
    tables: &[Table],
) -> Result<(), StoreError> {
    let overlaps = |[first, end]: [u32; 2]| first < slots.end && slots.start < end;
    for entry in &checkpoint.entries {
        for file in &entry.names {
            if let Some(own) = file.slots.filter(|&own| overlaps(own)) {
                read_file(checkpoint, entry, file, own, tables)?;
            }
        }
    }
    Ok(())
}

fn read_file(
    checkpoint: &Checkpoint,
    entry: &ReplicaEntry,
    file: &FileEntry,
    slots: [u32; 2],
    tables: &[Table],
) -> Result<(), StoreError> {
    let tables = tables.iter().enumerate().filter(|(_, t)| t.keeps_names());
    let tables: Vec<(usize, &Table)> = tables.collect();
    let mut reader = TensorReader::open(&checkpoint.dir, file)?;
    let mut found = Vec::new();
    for &(number, _) in &tables {
        found.push(read_keys(&mut reader, number, slots)?);
    }
    for (&(number, table), mut saved) in tables.iter().zip(found) {
        let last = saved.ends.last().copied().unwrap_or(0);
        let name = NamesNames::new(number).text;
        let text = reader.read::<u8>(&name, Dtype::U8, &[last as usize])?;
        saved.text = String::from_utf8(text)
            .ok()
            .filter(|text| {
                saved
                    .ends
                    .iter()
                    .all(|&e| text.is_char_boundary(e as usize))
            })
            .ok_or_else(|| {
                reader.broken(format!("has names of table {number} that are not UTF-8"))
            })?;
        table.restore_names(&saved, entry.version);
    }
    reader.finish()
}

fn read_keys(
    reader: &mut TensorReader,
    number: usize,
    slots: [u32; 2],
) -> Result<SavedNames, StoreError> {
    let names = NamesNames::new(number);
    let count = reader.len_of(&names.keys)?;
    let keys = reader.read::<u64>(&names.keys, Dtype::U64, &[count])?;
    let ends = reader.read::<u64>(&names.ends, Dtype::U64, &[count])?;
    let inside = |&key: &u64| (slots[0]..slots[1]).contains(&u32::from(hash_slot_of(key)));
    let starts = std::iter::once(&0).chain(&ends);
    let fits = |(&start, &end): (&u64, &u64)| {
        end.checked_sub(start)
            .is_some_and(|len| len <= MAX_NAME_BYTES as u64)
    };
    if !keys.iter().all(inside) || !starts.zip(&ends).all(fits) {
        return Err(reader.broken(
            "has names of keys outside its slots, or of impossible lengths; it is corrupt",
        ));
    }
    Ok(SavedNames {
        keys,
        ends,
        text: String::new(),
    })
}
