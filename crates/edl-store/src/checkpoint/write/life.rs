//! Writes the facts that a replica remembers beside rows: counts of keys without a row, and times
//! of versions.

use std::path::Path;

use safetensors::Dtype;

use super::{CHUNK_ROWS, Source, notes};
use crate::checkpoint::file::{PendingFile, laid_out};
use crate::checkpoint::format::{FileEntry, Layout, LifeNames, file_name};
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;
use crate::route::unhash;
use crate::table::Table;

/// Write the file, if there is anything to remember.
pub(super) fn write(
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
        let (names, count) = (LifeNames::new(number), table.snapshot_candidates());
        layout.add(names.keys, Dtype::U64, vec![count]);
        layout.add(names.versions, Dtype::U64, vec![count]);
    }
    for &(number, table) in &tables {
        let names = LifeNames::new(number);
        layout.add(names.counts, Dtype::U32, vec![table.snapshot_candidates()]);
    }
    for &(number, table) in &tables {
        let shape = vec![num_hash_slots as usize, table.sketch_cells()];
        layout.add(LifeNames::new(number).sketch, Dtype::U8, shape);
    }
    let (lens, header) = laid_out(dir, layout, &notes(source))?;
    let name = file_name(source.replica, source.num_replicas, "life");
    let mut file = PendingFile::create(dir, &name, &lens, &header)?;
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
