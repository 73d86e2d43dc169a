//! The strings of keys in a checkpoint, in files by slots.

use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;

use super::{MAX_NAME_BYTES, SavedNames};
use crate::checkpoint::{
    Checkpoint, FileEntry, Layout, PendingFile, ReplicaEntry, Source, TensorReader, of_table,
};
use crate::error::StoreError;
use crate::route::hash_slot_of;
use crate::table::Table;

// The tensors of one table.
const KEYS: &str = "names.keys";
const ENDS: &str = "names.ends";
const TEXT: &str = "names.text";

/// Write the names in some stripes, if any table keeps them: those that have come since the base.
///
/// A name never changes, and one that comes after the instant does no harm. One whose row goes
/// meanwhile is written all the same: it waits for some time before it is forgotten.
pub(crate) fn write(
    source: &Source<'_>,
    dir: &Path,
    stripes: Range<usize>,
    part: usize,
) -> Result<Option<(PendingFile, FileEntry)>, StoreError> {
    let tables: Vec<(usize, &Table)> = source.tables.iter().enumerate().collect();
    let tables: Vec<_> = tables
        .into_iter()
        .filter(|(_, table)| table.keeps_names())
        .collect();
    if tables.is_empty() {
        return Ok(None);
    }
    let saved = |&(_, table): &(usize, &Table)| {
        let mut saved = SavedNames::default();
        for stripe in stripes.clone() {
            table.names_since(stripe, source.names_since, &mut saved);
        }
        saved
    };
    let saved: Vec<SavedNames> = tables.iter().map(saved).collect();
    let mut layout = Layout::default();
    for (&(number, _), saved) in tables.iter().zip(&saved) {
        layout.add(of_table(number, KEYS), Dtype::U64, vec![saved.keys.len()]);
        layout.add(of_table(number, ENDS), Dtype::U64, vec![saved.ends.len()]);
    }
    for (&(number, _), saved) in tables.iter().zip(&saved) {
        layout.add(of_table(number, TEXT), Dtype::U8, vec![saved.text.len()]);
    }
    let slots = source.slots(&stripes);
    let mut file = source.create(dir, &format!("names-{part:02}"), layout, None)?;
    for (place, saved) in saved.iter().enumerate() {
        file.write(2 * place, bytemuck::cast_slice(&saved.keys))?;
        file.write(2 * place + 1, bytemuck::cast_slice(&saved.ends))?;
        file.write(2 * tables.len() + place, saved.text.as_bytes())?;
    }
    let entry = file.finish(Some(slots))?;
    Ok(Some((file, entry)))
}

/// Read the names of keys in `slots` into the tables, which have their rows already.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    slots: &Range<u32>,
    tables: &[Table],
) -> Result<(), StoreError> {
    let overlaps = |[first, end]: [u32; 2]| first < slots.end && slots.start < end;
    for entry in &checkpoint.entries {
        for file in &entry.beside.names {
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
        let name = of_table(number, TEXT);
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
    let count = reader.len_of(&of_table(number, KEYS))?;
    let keys = reader.read::<u64>(&of_table(number, KEYS), Dtype::U64, &[count])?;
    let ends = reader.read::<u64>(&of_table(number, ENDS), Dtype::U64, &[count])?;
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
