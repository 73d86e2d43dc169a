//! Gradients of several minibatches of a task, added up to one update before they are pushed.

use edl_store::{RoundGradient, StateRules};

use crate::dedup::{Plan, Planner, Site};
use crate::error::PsError;
use crate::replicas::Gradients;

/// The sum of several gradients, as it is pushed.
pub(crate) struct Sum {
    pub(crate) plan: Plan,
    rows: Vec<Vec<f32>>,
    dense: Vec<f32>,
    state: Vec<f32>,
}

impl Sum {
    /// Adds up gradients, each with its share of the records.
    ///
    /// Args: `dims` by table number; `treat` says what is pushed of the tables of a plan.
    pub(crate) fn of(
        parts: &[(RoundGradient, f32)],
        dims: &[usize],
        treat: impl Fn(&mut Plan),
        rules: &StateRules,
        num_replicas: usize,
    ) -> Result<Self, PsError> {
        let tables = parts.iter().flat_map(|(part, _)| &part.tables);
        let (sites, grads): (Vec<_>, Vec<_>) = tables
            .map(|(table, keys, grads)| {
                (
                    Site {
                        table: *table,
                        ids: keys,
                    },
                    grads.as_slice(),
                )
            })
            .unzip();
        let mut plan = Planner::default().plan(&sites, dims, num_replicas)?;
        treat(&mut plan);
        let tables = plan.tables.iter();
        let rows = tables.map(|table| {
            let mut sum = vec![0.0; table.keys().len() * table.dim];
            table.merge(&grads, &mut sum);
            sum
        });
        let changes: Vec<_> = parts
            .iter()
            .map(|(part, share)| (&part.state[..], *share))
            .collect();
        Ok(Self {
            rows: rows.collect(),
            dense: dense_sum(parts),
            state: rules.merge(&changes),
            plan,
        })
    }

    pub(crate) fn gradients(&self) -> Gradients<'_> {
        Gradients {
            rows: &self.rows,
            dense: &self.dense,
            state: &self.state,
        }
    }
}

/// Copies what a push of a minibatch by itself would send.
pub(crate) fn kept(plan: &Plan, gradients: &Gradients<'_>) -> RoundGradient {
    let tables = plan.tables.iter().zip(gradients.rows);
    let trained = tables.filter(|(table, _)| table.trainable);
    RoundGradient {
        tables: trained
            .map(|(table, grads)| (table.table, table.keys().to_vec(), grads.clone()))
            .collect(),
        dense: gradients.dense.to_vec(),
        state: gradients.state.to_vec(),
        weight: 1.0,
    }
}

fn dense_sum(parts: &[(RoundGradient, f32)]) -> Vec<f32> {
    // -0.0 changes no sum: a variable without a gradient in any part has none in the sum.
    let mut sum = vec![-0.0; parts.first().map_or(0, |(first, _)| first.dense.len())];
    for (part, _) in parts {
        for (sum, value) in sum.iter_mut().zip(&part.dense) {
            *sum += value;
        }
    }
    sum
}
