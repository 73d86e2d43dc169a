//! What moves out of a store, by the replicas that are to hold it.

use std::ops::Range;

use edl_store::{Piece, Progress, Store, StoreError, dense_range, replica_of};

use crate::error::PsError;

/// Rows of one table that go to one replica.
#[derive(Debug, Default)]
pub(crate) struct MovedRows {
    /// The table's number.
    pub(crate) table: u32,
    /// Keys.
    pub(crate) keys: Vec<u64>,
    /// The version of each one's last update.
    pub(crate) versions: Vec<u64>,
    /// Weights and slots of each.
    pub(crate) rows: Vec<f32>,
}

/// Give the rows of a store to the replicas of another layout: all, or what has changed since an
/// earlier copy of that name. Return how many.
///
/// # Errors
/// What cannot move, or what `take` returns for one of the replicas.
pub(crate) fn copy_rows(
    from: &Store,
    num_replicas: u32,
    (name, since): (&str, Option<&str>),
    progress: Progress<'_>,
    mut take: impl FnMut(u32, &MovedRows) -> Result<(), PsError>,
) -> Result<u64, PsError> {
    from.check_movable()?;
    let mut copied = 0;
    let mut parts: Vec<MovedRows> = Vec::new();
    parts.resize_with(num_replicas as usize, MovedRows::default);
    from.cut(name, since, progress, |piece| {
        let Piece::Rows {
            table,
            keys,
            versions,
            rows,
            width,
        } = piece
        else {
            let problem = "a row has gone from a table without expiry".to_owned();
            return Err(StoreError::BadModel(problem).into());
        };
        split(&mut parts, table as u32, (keys, versions), rows, width);
        copied += keys.len() as u64;
        for (replica, part) in (0..).zip(&mut parts) {
            if !part.keys.is_empty() {
                take(replica, part)?;
                part.keys.clear();
                part.versions.clear();
                part.rows.clear();
            }
        }
        Ok::<_, PsError>(())
    })?;
    Ok(copied)
}

fn split(
    parts: &mut [MovedRows],
    table: u32,
    (keys, versions): (&[u64], &[u64]),
    rows: &[f32],
    width: usize,
) {
    let num_replicas = parts.len() as u32;
    for ((&key, &version), row) in keys.iter().zip(versions).zip(rows.chunks_exact(width)) {
        let part = &mut parts[replica_of(key, num_replicas) as usize];
        part.table = table;
        part.keys.push(key);
        part.versions.push(version);
        part.rows.extend_from_slice(row);
    }
}

/// Give what a store holds of the vectors to a replica of another layout, as far as that is to hold
/// it: each part as that replica counts it, and its values.
///
/// # Errors
/// No model has been declared, or what `take` returns.
pub(crate) fn copy_vectors(
    from: &Store,
    to: Part,
    mut take: impl FnMut(Range<usize>, &[f32]) -> Result<(), PsError>,
) -> Result<(), PsError> {
    let (model, _) = from.model_to_move()?;
    let (dense, state) = (model.dense_len()?, model.state_len()?);
    let own: Part = (from.replica(), from.num_replicas());
    if let Some((here, there)) = common(dense, own, to) {
        let mut values = vec![0.0; here.len() * (1 + from.num_slots()?)];
        from.read_part(here, &mut values)?;
        take(there, &values)?;
    }
    if let Some((here, there)) = common(state, own, to) {
        // In a store's own count the state comes behind its dense values.
        let behind = |(replica, num_replicas): Part, part: Range<usize>| {
            let held = dense_range(dense, replica, num_replicas).len();
            held + part.start..held + part.end
        };
        let mut values = vec![0.0; here.len()];
        from.read_part(behind(own, here), &mut values)?;
        take(behind(to, there), &values)?;
    }
    Ok(())
}

/// A replica, and how many there are.
type Part = (u32, u32);

/// What two replicas hold both of a vector, each counted from its own first value.
fn common(len: usize, from: Part, to: Part) -> Option<(Range<usize>, Range<usize>)> {
    let here = dense_range(len, from.0, from.1);
    let there = dense_range(len, to.0, to.1);
    let (first, end) = (here.start.max(there.start), here.end.min(there.end));
    (first < end).then(|| {
        (
            first - here.start..end - here.start,
            first - there.start..end - there.start,
        )
    })
}
