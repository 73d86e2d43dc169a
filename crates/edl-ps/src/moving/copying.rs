//! Splits the contents of a store among the replicas that will hold them.

use std::ops::Range;

use edl_store::{Piece, Progress, Remembered, RowsToPut, Store, dense_range, replica_of};
use edl_wire::op::take::Given;

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
    /// The numbers that features keep for each row, row by row.
    pub(crate) words: Vec<u64>,
    /// Weights and slots of each.
    pub(crate) rows: Vec<f32>,
}

impl MovedRows {
    fn clear(&mut self) {
        self.keys.clear();
        self.versions.clear();
        self.words.clear();
        self.rows.clear();
    }
}

/// The part of a table that moves to a replica of another layout.
pub(crate) enum Moved<'m> {
    Rows(&'m MovedRows),
    /// The remembered keys, with the table's number.
    Remembered(u32, &'m Remembered),
}

impl Moved<'_> {
    /// Have it in a store that is filled.
    pub(crate) fn put_into(&self, store: &Store) -> Result<(), PsError> {
        match *self {
            Self::Rows(rows) => {
                let given = RowsToPut {
                    keys: &rows.keys,
                    versions: &rows.versions,
                    words: &rows.words,
                    rows: &rows.rows,
                };
                Ok(store.put_moved(rows.table, &given)?)
            }
            Self::Remembered(table, found) => Ok(store.put_remembered(table, found)?),
        }
    }

    /// The same, as it travels.
    pub(crate) fn given(&self) -> Given<'_> {
        match *self {
            Self::Rows(rows) => Given::Rows {
                table: rows.table,
                keys: &rows.keys,
                versions: &rows.versions,
                births: &rows.words,
                rows: &rows.rows,
            },
            Self::Remembered(table, found) => Given::Remembered {
                table,
                kind: found.kind.number(),
                keys: &found.keys,
                versions: &found.versions,
                ends: &found.ends,
                bytes: &found.bytes,
            },
        }
    }
}

/// Give what a store has in its tables to the replicas of another layout: all, or what has changed
/// since an earlier copy of that name. Return how many rows.
///
/// Rows come first: what is remembered of a key depends on whether it has one.
///
/// # Errors
/// Rows have gone since the earlier copy, or what `take` returns for one of the replicas.
pub(crate) fn copy_tables(
    from: &Store,
    num_replicas: u32,
    (name, since): (&str, Option<&str>),
    progress: Progress<'_>,
    mut take: impl FnMut(u32, Moved<'_>) -> Result<(), PsError>,
) -> Result<u64, PsError> {
    if since.is_none() {
        from.note_changes()?;
    }
    let mut copied = 0;
    let mut parts: Vec<MovedRows> = Vec::new();
    parts.resize_with(num_replicas as usize, MovedRows::default);
    let cut = from.cut(name, since, progress, |piece| {
        let Piece::Rows {
            table,
            keys,
            versions,
            words,
            rows,
            width,
        } = piece
        else {
            return Err(rows_have_gone());
        };
        let given = RowsToPut {
            keys,
            versions,
            words,
            rows,
        };
        split(&mut parts, table as u32, &given, width);
        copied += keys.len() as u64;
        for (replica, part) in (0..).zip(&mut parts) {
            if !part.keys.is_empty() {
                take(replica, Moved::Rows(part))?;
                part.clear();
            }
        }
        Ok::<_, PsError>(())
    })?;
    if cut.has_removals {
        return Err(rows_have_gone());
    }
    from.give_remembered(cut.since, |table, found| {
        progress();
        found.split(num_replicas, |replica, part| {
            take(replica, Moved::Remembered(table, part))
        })
    })?;
    Ok(copied)
}

/// The master has no rows expire while the model moves; one before it may have asked for that.
fn rows_have_gone() -> PsError {
    PsError::System("rows have expired while the model moved; it is to be tried again".to_owned())
}

fn split(parts: &mut [MovedRows], table: u32, given: &RowsToPut<'_>, width: usize) {
    let num_replicas = parts.len() as u32;
    let rows = given.rows.chunks_exact(width);
    let num_words = given.words.len() / given.keys.len().max(1);
    for (i, (&key, row)) in given.keys.iter().zip(rows).enumerate() {
        let part = &mut parts[replica_of(key, num_replicas) as usize];
        part.table = table;
        part.keys.push(key);
        part.versions.push(given.versions[i]);
        part.words
            .extend_from_slice(&given.words[i * num_words..][..num_words]);
        part.rows.extend_from_slice(row);
    }
}

/// Gives a replica of another layout its share of this store's vectors. A part is given with its
/// values, and is counted as that replica counts.
///
/// # Errors
/// No model has been declared, or an error of `take`.
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

/// The part of a vector that two replicas both hold, counted from the first value of each.
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
