//! Files of rows.

use std::path::Path;

use safetensors::Dtype;

use super::TensorReader;
use crate::checkpoint::format::{FileEntry, of_table};
use crate::error::StoreError;
use crate::progress::Progress;
use crate::route::hash_slot_of;
use crate::table::{Table, make_room};

/// Bytes of rows that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A file of rows.
pub(super) struct RowsFile<'a> {
    pub(super) file: &'a FileEntry,
    pub(super) slots: [u32; 2],
    /// No row is of a later one.
    pub(super) version: u64,
    /// Versions that are no longer counted.
    pub(super) earlier: u64,
    pub(super) is_base: bool,
    /// Told with each piece that is read.
    pub(super) progress: Progress<'a>,
}

/// The tensors of a table that a file has before its rows.
struct Heads {
    keys: Vec<u64>,
    versions: Vec<u64>,
    /// The numbers of all columns, row by row.
    words: Vec<u64>,
}

/// Read a file of rows into the tables; rows of other replicas are left out.
pub(super) fn read_rows_file(
    dir: &Path,
    part: &RowsFile<'_>,
    tables: &[Table],
) -> Result<(), StoreError> {
    let mut reader = TensorReader::open(dir, part.file)?;
    let mut found = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        found.push(read_heads(&mut reader, number, table, part)?);
    }
    for (number, (table, heads)) in tables.iter().zip(found).enumerate() {
        read_rows(&mut reader, number, (table, tables), &heads, part)?;
    }
    reader.finish()
}

fn read_heads(
    reader: &mut TensorReader,
    number: usize,
    table: &Table,
    part: &RowsFile<'_>,
) -> Result<Heads, StoreError> {
    let (slots, last) = (part.slots, part.version);
    let count = reader.len_of(&of_table(number, "keys"))?;
    let mut read = |what: &str| {
        let name = of_table(number, what);
        reader.read::<u64>(&name, Dtype::U64, &[count])
    };
    let (keys, mut versions) = (read("keys")?, read("versions")?);
    let columns = table.columns();
    let mut words = vec![0; count * columns.len()];
    for (i, column) in columns.iter().enumerate() {
        let found = read(column)?;
        let places = words.iter_mut().skip(i).step_by(columns.len());
        places.zip(found).for_each(|(word, found)| *word = found);
    }
    if let Some(late) = versions.iter().chain(&words).find(|&&v| v > last) {
        return Err(reader.broken(format!(
            "has a row of version {late}, later than the checkpoint's {last}; it is corrupt"
        )));
    }
    let inside = |&key: &u64| (slots[0]..slots[1]).contains(&u32::from(hash_slot_of(key)));
    if !keys.iter().all(inside) {
        return Err(reader.broken(format!(
            "has keys outside the slots {}..{} that the manifest gives it; it is corrupt",
            slots[0], slots[1]
        )));
    }
    for version in versions.iter_mut().chain(&mut words) {
        *version = version.saturating_sub(part.earlier);
    }
    Ok(Heads {
        keys,
        versions,
        words,
    })
}

fn read_rows(
    reader: &mut TensorReader,
    number: usize,
    (table, tables): (&Table, &[Table]),
    heads: &Heads,
    part: &RowsFile<'_>,
) -> Result<(), StoreError> {
    let (keys, width, num_words) = (&heads.keys, table.width(), table.columns().len());
    table.reserve(keys)?;
    let name = of_table(number, "rows");
    reader.begin(&name, Dtype::F32, &[keys.len(), width])?;
    let rows = (CHUNK_BYTES / 4 / width).max(1);
    for start in (0..keys.len()).step_by(rows) {
        let range = start..(start + rows).min(keys.len());
        let words = &heads.words[range.start * num_words..range.end * num_words];
        let (keys, versions) = (&keys[range.clone()], &heads.versions[range]);
        let mut values = vec![0.0_f32; keys.len() * width];
        reader.fill(&mut values)?;
        (part.progress)();
        if let Some(key) = table.restore((keys, versions, words, &values), part.is_base) {
            return Err(reader.broken(format!(
                "has key {key} of table '{}' that was read before; it is corrupt",
                table.name()
            )));
        }
        make_room(tables);
        if let Some(full) = table.budget().disk().and_then(|disk| disk.full()) {
            return Err(full);
        }
    }
    Ok(())
}
