//! All tables of one version of an export.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use edl_export::{CutTable, ReplicaCut};
use edl_store::NUM_HASH_SLOTS;

use crate::error::ServeError;
use crate::file::{Rows, read, read_keys_alone};
use crate::layer::Layer;
use crate::table::Table;

/// The tables of one version of an export.
#[derive(Clone)]
pub struct Tables {
    tables: Vec<Table>,
}

impl Tables {
    /// Make tables of given names and dims, without rows. Rows to come lie in files without a name in
    /// `folder`, which are mapped; `None`: in memory.
    pub fn new(tables: impl IntoIterator<Item = (String, usize)>, folder: Option<&Path>) -> Self {
        let folder: Option<Arc<Path>> = folder.map(Arc::from);
        let tables = tables.into_iter();
        Self {
            tables: tables
                .map(|(name, dim)| Table::empty(name, dim, folder.clone()))
                .collect(),
        }
    }

    /// Return these tables with another version, whose files lie in `folder`; `replicas` is what its
    /// manifest says of each replica's part, as JSON.
    ///
    /// # Errors
    /// A file that is missing or not what the manifest says, or a manifest of other tables.
    pub fn apply(&self, folder: &Path, replicas: &str) -> Result<Self, ServeError> {
        let replicas: Vec<ReplicaCut> = serde_json::from_str(replicas)
            .map_err(|e| ServeError::Manifest(format!("the parts do not parse: {e}")))?;
        check_slots(&replicas)?;
        let tables = self.tables.iter().enumerate();
        let tables = tables.map(|(number, table)| apply_to(table, number, folder, &replicas));
        Ok(Self {
            tables: tables.collect::<Result<_, _>>()?,
        })
    }

    /// Write the rows of `keys` to `out`: `keys.len() * dim` floats; each weight of a key without a
    /// row is `unseen`.
    ///
    /// # Errors
    /// There is no such table, or `out` has another length.
    pub fn look_up(
        &self,
        table: usize,
        keys: &[u64],
        unseen: f32,
        out: &mut [f32],
    ) -> Result<(), ServeError> {
        let table = self.table(table)?;
        if out.len() != keys.len() * table.dim {
            return Err(ServeError::Manifest(format!(
                "table '{}': expected room for {} rows of {} floats, found {}",
                table.name,
                keys.len(),
                table.dim,
                out.len()
            )));
        }
        for (&key, out) in keys.iter().zip(out.chunks_exact_mut(table.dim)) {
            match table.row(key) {
                Some(row) => {
                    for (weight, &bits) in out.iter_mut().zip(row) {
                        *weight = f32::from_bits(bits);
                    }
                }
                None => out.fill(unseen),
            }
        }
        Ok(())
    }

    /// Return the keys of a table that have a row.
    ///
    /// # Errors
    /// There is no such table.
    pub fn keys(&self, table: usize) -> Result<Vec<u64>, ServeError> {
        Ok(self.table(table)?.keys())
    }

    /// Return the floats in a row of a table.
    ///
    /// # Errors
    /// There is no such table.
    pub fn dim(&self, table: usize) -> Result<usize, ServeError> {
        Ok(self.table(table)?.dim)
    }

    /// Return the most layers that a look-up goes through.
    pub fn num_layers(&self) -> usize {
        let layers = self.tables.iter().map(Table::num_layers);
        layers.max().unwrap_or(0)
    }

    /// Return the bytes that the rows take.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(Table::bytes).sum()
    }

    fn table(&self, number: usize) -> Result<&Table, ServeError> {
        self.tables.get(number).ok_or_else(|| {
            let count = self.tables.len();
            ServeError::Manifest(format!("table {number}: there are {count}"))
        })
    }
}

fn apply_to(
    table: &Table,
    number: usize,
    folder: &Path,
    replicas: &[ReplicaCut],
) -> Result<Table, ServeError> {
    let spilt = |error: std::io::Error| match table.folder() {
        Some(folder) => ServeError::file(folder, error),
        None => ServeError::Manifest(error.to_string()),
    };
    let mut rows = Rows::new(table.folder()).map_err(spilt)?;
    let (mut gone, mut whole) = (Vec::new(), Vec::new());
    for replica in replicas {
        let part = part_of(table, number, replica)?;
        if let Some(file) = &part.rows {
            read(folder, file, table.dim, &mut rows)?;
        }
        if let Some(file) = &part.gone {
            gone.extend(read_keys_alone(folder, file)?);
        }
        if replica.whole {
            whole.push(slots_of(replica));
        }
    }
    let words = rows.weights.finish().map_err(spilt)?;
    let layer = Layer::new(table.dim, rows.keys, words, &gone, whole).map_err(|key| {
        let what = match key {
            Some(key) => format!("key {} comes twice", key.cast_signed()),
            None => "more keys than can be numbered".to_owned(),
        };
        ServeError::Manifest(format!("table '{}': {what}", table.name))
    })?;
    Ok(table.with(layer))
}

fn part_of<'a>(
    table: &Table,
    number: usize,
    replica: &'a ReplicaCut,
) -> Result<&'a CutTable, ServeError> {
    let part = replica.tables.get(number);
    part.filter(|part| part.name == table.name && part.dim as usize == table.dim)
        .ok_or_else(|| {
            ServeError::Manifest(format!(
                "replica {}: expected table '{}' of dim {} as number {number}, found {}",
                replica.replica,
                table.name,
                table.dim,
                part.map_or("none".to_owned(), |part| {
                    format!("'{}' of dim {}", part.name, part.dim)
                })
            ))
        })
}

fn slots_of(replica: &ReplicaCut) -> Range<u32> {
    replica.slots[0]..replica.slots[1]
}

/// Check that each key is in one replica's part.
fn check_slots(replicas: &[ReplicaCut]) -> Result<(), ServeError> {
    let mut parts: Vec<Range<u32>> = replicas.iter().map(slots_of).collect();
    parts.sort_by_key(|slots| slots.start);
    let mut next = 0;
    for slots in &parts {
        if slots.start != next || slots.end < slots.start {
            break;
        }
        next = slots.end;
    }
    let is_missing = replicas
        .iter()
        .any(|r| r.num_replicas as usize != replicas.len());
    if next != NUM_HASH_SLOTS || is_missing {
        return Err(ServeError::Manifest(format!(
            "the parts of {} replicas do not make up all of the tables, found those of hash slots \
             {parts:?}",
            replicas.len()
        )));
    }
    Ok(())
}
