//! The layout of a row: what is in it, how it begins, how it is read and how an update changes it.
//!
//! Index, arena, disk and checkpoints move rows as so many floats, and know nothing of what is in
//! them.

use std::borrow::Cow;

use edl_optim::{Constraint, Optimizer, Row, Step};

use crate::initial::Generator;
use crate::spec::{MAX_ROW_FLOATS, TableSpec};

/// A row's layout: weights, then each optimizer slot, all of length `dim`.
#[derive(Debug, Clone)]
pub(crate) struct RowSpec {
    /// Floats of the weights.
    pub(crate) dim: usize,
    /// Floats of weights and slots.
    pub(crate) width: usize,
    pub(crate) optimizer: Optimizer,
    /// Rows are held to it from their creation on.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) generator: Generator,
}

impl RowSpec {
    /// Return the rows of a table. Args: `seed` is the model's.
    ///
    /// # Errors
    /// What cannot be stored, in words.
    pub(crate) fn parse(spec: &TableSpec, seed: u64) -> Result<Self, String> {
        let optimizer = spec.optimizer.parse().map_err(|e| e.to_string())?;
        let kind = spec.initializer.parse()?;
        let constraint = spec.constraint.as_ref().map(|c| c.parse()).transpose()?;
        let width = spec.dim as usize * (1 + optimizer.num_slots());
        if spec.dim == 0 || width > MAX_ROW_FLOATS {
            return Err(format!(
                "dim is {} and a row has {width} floats with its optimizer slots, expected dim \
                 of at least 1 and at most {MAX_ROW_FLOATS} floats",
                spec.dim
            ));
        }
        Ok(Self {
            dim: spec.dim as usize,
            width,
            optimizer,
            constraint,
            generator: Generator::new(seed, spec, kind),
        })
    }

    /// Give a new row its weights, held to the constraint, and its slots.
    pub(crate) fn begin(&self, row: &mut [f32], fill: impl FnOnce(&mut [f32])) {
        let (weights, slots) = row.split_at_mut(self.dim);
        fill(weights);
        if let Some(constraint) = &self.constraint {
            constraint.apply(weights);
        }
        self.optimizer.fill_slots(weights, slots);
    }

    /// Return what an update does to rows.
    pub(crate) fn step(&self, learning_rate: f32, version: u64) -> Step {
        let step = self.optimizer.step(learning_rate, version);
        step.with_constraint(self.constraint)
    }

    /// Return how many floats of a row, from the first on, have its weights: its head. `DIM` is the
    /// number of weights where the compiler shall know it, else 0.
    #[inline(always)]
    pub(crate) fn head<const DIM: usize>(&self) -> usize {
        if DIM == 0 { self.dim } else { DIM }
    }

    /// Copy the weights out of the head of a row.
    #[inline(always)]
    pub(crate) fn read<const DIM: usize>(&self, head: &[f32], out: &mut [f32]) {
        let dim = if DIM == 0 { self.dim } else { DIM };
        out[..dim].copy_from_slice(&head[..dim]);
    }

    /// Return the weights of the heads of some rows.
    pub(crate) fn weights<'h>(&self, heads: Cow<'h, [f32]>) -> Cow<'h, [f32]> {
        heads
    }

    /// Update rows, each given whole.
    #[inline(always)]
    pub(crate) fn update<const DIM: usize>(&self, step: &Step, rows: &[Row<'_>]) {
        step.update_rows::<DIM>(rows);
    }
}
