//! Rows that tables begin with, given before the model is known: pretrained ones.

use super::Store;
use crate::error::StoreError;
use crate::placement::Placement;
use crate::route::hash;
use crate::spec::ModelSpec;
use crate::table::Table;

/// Rows of this replica that a table begins with.
#[derive(Debug)]
pub(super) struct FirstRows {
    table: String,
    /// Where they come from, for messages.
    source: String,
    dim: usize,
    keys: Vec<u64>,
    rows: Vec<f32>,
}

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
        };
        for (i, &key) in keys.iter().enumerate() {
            if placement.owns(hash(key)) {
                first.keys.push(key);
                first.rows.extend_from_slice(&rows[i * dim..][..dim]);
            }
        }
        self.first_rows.lock().push(first);
        Ok(())
    }
}

/// Put rows into the tables of a new model.
pub(super) fn put(
    first_rows: &[FirstRows],
    model: &ModelSpec,
    tables: &[Table],
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
        if let Some(key) = table.begin_with(&first.keys, &first.rows)? {
            return Err(bad(format!(
                "it has a row of key {key} of table '{name}', which has one already"
            )));
        }
    }
    Ok(())
}
