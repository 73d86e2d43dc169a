//! One minibatch's gradients, cut by replica.

use std::ops::Range;

use edl_store::dense_range;
use edl_wire::frame::Element;
use edl_wire::half_rows::narrow;
use edl_wire::op::push::{Request, TableGradients};
use edl_wire::op::{RowValues, Step, TableRows, Vectors};

use super::owed::Mark;
use crate::dedup::Plan;
use crate::replicas::{Gradients, Minibatch};

/// Cuts a flat vector, or the place for one, into what each replica holds of it.
pub(super) fn ranges_of(len: usize, num_replicas: usize) -> impl Fn(usize) -> Range<usize> {
    move |replica| dense_range(len, replica as u32, num_replicas as u32)
}

/// A push, of which each replica gets its part.
pub(super) struct Push<'a> {
    plan: &'a Plan,
    gradients: &'a Gradients<'a>,
    /// The gradients of the tables whose rows travel as 16-bit floats.
    halves: Vec<Vec<u16>>,
    minibatch: &'a Minibatch,
    versions: &'a [u64],
}

impl<'a> Push<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        gradients: &'a Gradients<'a>,
        minibatch: &'a Minibatch,
        versions: &'a [u64],
    ) -> Self {
        Self {
            plan,
            gradients,
            halves: halves_of(plan, gradients.rows),
            minibatch,
            versions,
        }
    }

    /// The minibatch, if replicas without a key of it may hear of it later.
    pub(super) fn mark(&self) -> Option<Mark> {
        let &Minibatch {
            task,
            lease,
            index,
            num_records,
            ..
        } = self.minibatch;
        (self.minibatch.num_minibatches == 1).then_some(Mark {
            step: Step { task, lease, index },
            num_records,
        })
    }

    /// Whether a replica has nothing of it.
    pub(super) fn spares(&self, replica: usize) -> bool {
        let num_replicas = self.versions.len();
        let is_without = |len: usize| ranges_of(len, num_replicas)(replica).is_empty();
        let mut trained = self.plan.tables.iter().filter(|table| table.trainable);
        is_without(self.gradients.dense.len())
            && is_without(self.gradients.state.len())
            && trained.all(|table| table.range(replica).is_empty())
    }

    /// Returns the message to one replica.
    pub(super) fn part(&self, replica: usize) -> Request<'_> {
        let &Minibatch {
            task,
            lease,
            index,
            num_minibatches,
            num_records,
            learning_rate,
        } = self.minibatch;
        let Gradients { rows, dense, state } = self.gradients;
        let tables = self.plan.tables.iter().zip(*rows).zip(&self.halves);
        let trained = tables.filter(|((table, _), _)| table.trainable);
        let tables = trained.map(|((table, grads), halves)| {
            let range = table.row_range(replica);
            let values = match table.element {
                Element::F16 | Element::Bf16 => RowValues::Half(table.element, &halves[range]),
                Element::U8 | Element::U64 | Element::F32 => RowValues::Full(&grads[range]),
            };
            TableGradients {
                keys: &table.keys()[table.range(replica)],
                rows: TableRows {
                    table: table.table,
                    dim: table.dim as u32,
                    values,
                },
            }
        });
        let num_replicas = self.versions.len();
        Request {
            step: Step { task, lease, index },
            num_minibatches,
            num_records,
            learning_rate,
            pulled_version: self.versions[replica],
            tables: tables.collect(),
            vectors: Vectors {
                dense: &dense[ranges_of(dense.len(), num_replicas)(replica)],
                state: &state[ranges_of(state.len(), num_replicas)(replica)],
            },
        }
    }
}

fn halves_of(plan: &Plan, rows: &[Vec<f32>]) -> Vec<Vec<u16>> {
    let tables = plan.tables.iter().zip(rows);
    let halves = tables.map(|(table, rows)| match table.element {
        Element::F16 | Element::Bf16 => {
            let mut halves = vec![0; rows.len()];
            narrow(table.element, rows, &mut halves);
            halves
        }
        Element::U8 | Element::U64 | Element::F32 => Vec::new(),
    });
    halves.collect()
}
