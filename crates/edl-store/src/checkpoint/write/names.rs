//! The strings that keys were made of, for the tables that keep them.

use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;

use super::{Source, notes};
use crate::checkpoint::file::{PendingFile, laid_out};
use crate::checkpoint::format::{FileEntry, Layout, NamesNames, file_name};
use crate::error::StoreError;
use crate::table::{SavedNames, Table};

/// Write the names in some stripes, if any table keeps them: those that have come since the base.
///
/// A name never changes, and one that comes after the instant does no harm. One whose row goes
/// meanwhile is written all the same: it waits for some time before it is forgotten.
pub(super) fn write(
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
        let names = NamesNames::new(number);
        layout.add(names.keys, Dtype::U64, vec![saved.keys.len()]);
        layout.add(names.ends, Dtype::U64, vec![saved.ends.len()]);
    }
    for (&(number, _), saved) in tables.iter().zip(&saved) {
        layout.add(
            NamesNames::new(number).text,
            Dtype::U8,
            vec![saved.text.len()],
        );
    }
    let slots = [
        source.placement.first_hash_slot(stripes.start),
        source.placement.first_hash_slot(stripes.end),
    ];
    let (lens, header) = laid_out(dir, layout, &notes(source))?;
    let name = file_name(
        source.replica,
        source.num_replicas,
        &format!("names-{part:02}"),
    );
    let mut file = PendingFile::create(dir, &name, &lens, &header)?;
    for (place, saved) in saved.iter().enumerate() {
        file.write(2 * place, bytemuck::cast_slice(&saved.keys))?;
        file.write(2 * place + 1, bytemuck::cast_slice(&saved.ends))?;
        file.write(2 * tables.len() + place, saved.text.as_bytes())?;
    }
    let entry = file.finish(Some(slots))?;
    Ok(Some((file, entry)))
}
