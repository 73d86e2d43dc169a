//! Checkpoints whose rows and vectors are apart, or are wanted apart.
//!
//! In a hybrid job rows are on ps replicas, and the vectors in each worker. So a new job of one kind
//! that goes on from a checkpoint of the other takes rows and vectors from different places.

use std::path::Path;

use super::{Checkpoint, Restored, Wanted};
use crate::checkpoint::format::{MANIFEST, broken};
use crate::error::StoreError;
use crate::features::life::Times;
use crate::spec::ModelSpec;
use crate::tasks::Watermarks;
use crate::vectors::{DenseRule, Vectors};

/// The part of a model that a store takes, and its places; each place is the folder of a
/// checkpoint.
#[derive(Debug, Clone, Copy)]
pub enum Parts<'a> {
    /// The rows alone.
    Rows(&'a Path),
    /// The dense and state vectors alone.
    Vectors(&'a Path),
    /// All, from two checkpoints of the same model. The version is that of the vectors, and
    /// versions of rows are less by as much as theirs is higher.
    Both {
        /// The folder of the rows.
        rows: &'a Path,
        /// The folder of the vectors.
        vectors: &'a Path,
    },
}

/// Read the part of a replica for a new job: no task has been begun.
pub(crate) fn read_parts(parts: Parts<'_>, wanted: &Wanted<'_>) -> Result<Restored, StoreError> {
    match parts {
        Parts::Rows(dir) => rows_of(dir, None, wanted),
        Parts::Vectors(dir) => vectors_of(dir, wanted),
        Parts::Both { rows, vectors } => {
            let other = vectors_of(vectors, wanted)?;
            let own = rows_of(rows, Some(other.version), wanted)?;
            let model = ModelSpec {
                dense: other.model.dense.clone(),
                state: other.model.state.clone(),
                ..own.model
            };
            let described = ModelSpec {
                tables: model.tables.clone(),
                ..other.model
            };
            if let Some(said) = described.difference(&model) {
                let problem = format!("is of another model than {}: {said}", rows.display());
                return Err(broken(&vectors.join(MANIFEST), problem));
            }
            Ok(Restored {
                model,
                vectors: other.vectors,
                ..own
            })
        }
    }
}

fn vectors_of(dir: &Path, wanted: &Wanted<'_>) -> Result<Restored, StoreError> {
    let mut checkpoint = Checkpoint::open(dir, wanted)?;
    let (vectors, version, _) = checkpoint.read_vectors(wanted)?;
    checkpoint.renew_versions();
    Ok(Restored {
        model: ModelSpec {
            tables: Vec::new(),
            ..checkpoint.model().clone()
        },
        tables: Vec::new(),
        vectors,
        version: version - checkpoint.earlier,
        watermarks: Watermarks::new(),
        first_task: 0,
        times: Times::default(),
    })
}

/// Args: `version` is that of the vectors, if they come from elsewhere.
fn rows_of(dir: &Path, version: Option<u64>, wanted: &Wanted<'_>) -> Result<Restored, StoreError> {
    let mut checkpoint = Checkpoint::open(dir, wanted)?;
    checkpoint.renew_versions();
    if let Some(version) = version {
        // In a hybrid job the rows count each minibatch, the vectors each round of all workers.
        let highest = checkpoint.entries.iter().map(|e| e.version).max();
        checkpoint.earlier = highest.unwrap_or(0).saturating_sub(version);
    }
    let (tables, times) = checkpoint.read_tables(wanted)?;
    let model = ModelSpec {
        dense: Vec::new(),
        state: Vec::new(),
        ..checkpoint.model().clone()
    };
    let rule = DenseRule::of(&model, 0..0).map_err(|e| checkpoint.broken(e))?;
    let version = version.unwrap_or(checkpoint.version(wanted) - checkpoint.earlier);
    Ok(Restored {
        model,
        tables,
        vectors: Vectors::new(rule, &[], &[]),
        version,
        watermarks: Watermarks::new(),
        first_task: 0,
        times,
    })
}
