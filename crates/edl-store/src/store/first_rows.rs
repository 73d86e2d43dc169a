//! The first rows of tables, given before the model is known. Pretrained rows come from files,
//! which the replica reads itself. Rows that a model file sets come from the workers, all of which
//! have them.

use super::Store;
use crate::error::StoreError;
use crate::placement::Placement;
use crate::progress::Progress;
use crate::redo::Change;
use crate::route::hash;
use crate::spec::ModelSpec;
use crate::table::{Table, make_room};

/// Rows of this replica that a table begins with.
#[derive(Debug)]
pub(super) struct FirstRows {
    table: String,
    /// The origin of the rows, for messages.
    source: String,
    dim: usize,
    keys: Vec<u64>,
    rows: Vec<f32>,
    /// A worker gave them, and others may give the same: its first key.
    given: Option<u64>,
}

/// The origin of rows that a worker gives, for messages.
const GIVEN: &str = "the rows that the model file sets";
/// Rows that are put in between two words of progress.
const PIECE: usize = 1 << 16;

impl Store {
    /// Have a table begin with rows, of which this replica keeps its own; `source` says in messages
    /// where they come from. They are put in when the model is declared for the first time, as if
    /// they were initial values. A store that was restored has all its rows, and takes none.
    ///
    /// # Errors
    /// A model that is known already, or rows that are not `keys.len()` times `dim` floats.
    pub fn begin_with(
        &self,
        table: &str,
        source: &str,
        dim: usize,
        keys: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        if self.model.get().is_some() {
            return Err(StoreError::BadModel(format!(
                "{source}: the store has a model; rows are given before it is declared"
            )));
        }
        let first = self.own_rows(table, source, dim, keys, rows)?;
        self.first_rows.lock().push(first);
        Ok(())
    }

    /// Let a table begin with rows of a worker, in pieces. Any worker may give any piece, any
    /// number of times, since all workers have the same rows. A store with a model has its rows
    /// already, and takes none.
    ///
    /// # Errors
    /// Rows that are not `keys.len()` times `dim` floats.
    pub fn give(
        &self,
        table: &str,
        dim: usize,
        keys: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        if self.model.get().is_some() || keys.is_empty() {
            return Ok(());
        }
        let mut piece = self.own_rows(table, GIVEN, dim, keys, rows)?;
        piece.given = keys.first().copied();
        let mut first_rows = self.first_rows.lock();
        self.note(&Change::Give {
            table,
            dim,
            keys,
            rows,
        });
        first_rows.retain(|first| first.table != piece.table || first.given != piece.given);
        first_rows.push(piece);
        Ok(())
    }

    /// Returns the rows that belong to this replica.
    fn own_rows(
        &self,
        table: &str,
        source: &str,
        dim: usize,
        keys: &[u64],
        rows: &[f32],
    ) -> Result<FirstRows, StoreError> {
        if keys.len().checked_mul(dim) != Some(rows.len()) {
            return Err(StoreError::WrongLength {
                what: format!("the rows of {source}"),
                expected: keys.len().saturating_mul(dim),
                found: rows.len(),
            });
        }
        let placement = Placement::new(self.replica, self.num_replicas)?;
        let mut first = FirstRows {
            table: table.to_owned(),
            source: source.to_owned(),
            dim,
            keys: Vec::new(),
            rows: Vec::new(),
            given: None,
        };
        for (i, &key) in keys.iter().enumerate() {
            if placement.owns(hash(key)) {
                first.keys.push(key);
                first.rows.extend_from_slice(&rows[i * dim..][..dim]);
            }
        }
        Ok(first)
    }
}

/// Refuse a model whose workers have rows for a table that this replica has not got.
pub(super) fn check_given(
    first_rows: &[FirstRows],
    model: &ModelSpec,
    placement: Placement,
) -> Result<(), StoreError> {
    for table in model.tables.iter().filter(|table| table.given_rows) {
        let keys = 0..table.input_dim.unwrap_or(0);
        let expected = keys.filter(|&key| placement.owns(hash(key))).count() as u64;
        let given = |first: &&FirstRows| first.given.is_some() && first.table == table.name;
        let given = first_rows.iter().filter(given);
        let found = given.map(|first| first.keys.len() as u64).sum();
        if found != expected {
            return Err(StoreError::RowsAwaited {
                table: table.name.clone(),
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// Put rows into the tables of a new model.
pub(super) fn put(
    first_rows: &[FirstRows],
    model: &ModelSpec,
    tables: &[Table],
    progress: Progress<'_>,
) -> Result<(), StoreError> {
    for first in first_rows {
        let bad = |problem: String| StoreError::BadModel(format!("{}: {problem}", first.source));
        let name = &first.table;
        let Some(number) = tables.iter().position(|table| table.name() == name) else {
            let known: Vec<&str> = tables.iter().map(Table::name).collect();
            return Err(bad(format!(
                "its rows are for table '{name}', the model has {}",
                known.join(", ")
            )));
        };
        let table = &tables[number];
        if table.dim() != first.dim {
            return Err(bad(format!(
                "its rows have {} numbers, table '{name}' has dim {}",
                first.dim,
                table.dim()
            )));
        }
        let limit = model.tables[number].input_dim.unwrap_or(u64::MAX);
        if let Some(key) = first.keys.iter().find(|&&key| key >= limit) {
            return Err(bad(format!(
                "it has a row of key {key}, table '{name}' has input_dim {limit}"
            )));
        }
        let pieces = first.keys.chunks(PIECE);
        for (keys, rows) in pieces.zip(first.rows.chunks(PIECE * first.dim.max(1))) {
            if let Some(key) = table.begin_with(keys, rows)? {
                return Err(bad(format!(
                    "it has a row of key {key} of table '{name}', which has one already"
                )));
            }
            make_room(tables);
            progress();
        }
    }
    Ok(())
}
