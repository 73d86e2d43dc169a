//! Gradients that are kept until they are applied together.

use edl_store::{Push, RoundGradient, Statistics, Store};

use crate::dedup::{Planner, Site};

/// Copies a gradient out of its frame.
pub(super) fn kept(push: &Push<'_>) -> RoundGradient {
    let tables = push.tables.iter();
    RoundGradient {
        tables: tables
            .map(|table| (table.table, table.keys.to_vec(), table.grads.to_vec()))
            .collect(),
        dense: push.dense.to_vec(),
        state: push.state.to_vec(),
        weight: 1.0,
    }
}

/// Returns the weighted sum of gradients that fit the store's model; the state is combined by its
/// rules. Counts of statistics are no mean, so they have no weight.
pub(super) fn merge(store: &Store, parts: &[(&RoundGradient, f32)]) -> RoundGradient {
    let changes: Vec<_> = parts.iter().map(|(g, w)| (&g.state[..], *w)).collect();
    let model = store.model();
    let statistics_of = |table: u32| {
        let spec = model.as_ref()?.tables.get(table as usize)?.statistics?;
        spec.parse().ok()
    };
    RoundGradient {
        tables: merge_rows(parts, statistics_of),
        dense: weighted(parts),
        state: store.merge_state(&changes),
        weight: parts.iter().map(|(_, weight)| weight).sum(),
    }
}

fn weighted(parts: &[(&RoundGradient, f32)]) -> Vec<f32> {
    // -0.0 changes no sum: a variable without a gradient in any part has none in the sum.
    let mut sum = vec![-0.0; parts.first().map_or(0, |(first, _)| first.dense.len())];
    for (gradient, weight) in parts {
        for (sum, value) in sum.iter_mut().zip(&gradient.dense) {
            *sum += weight * value;
        }
    }
    sum
}

fn merge_rows(
    parts: &[(&RoundGradient, f32)],
    statistics_of: impl Fn(u32) -> Option<Statistics>,
) -> Vec<(u32, Vec<u64>, Vec<f32>)> {
    let mut dims: Vec<usize> = Vec::new();
    let (mut sites, mut grads) = (Vec::new(), Vec::new());
    for (gradient, weight) in parts {
        for (table, keys, rows) in &gradient.tables {
            let number = *table as usize;
            dims.resize(dims.len().max(number + 1), 0);
            // A table without keys here has its dim from another part, or is not in the result.
            if !keys.is_empty() {
                dims[number] = rows.len() / keys.len();
                sites.push(Site {
                    table: *table,
                    ids: keys,
                });
                let weight = statistics_of(*table).map_or(*weight, |_| 1.0);
                grads.push(rows.iter().map(|value| weight * value).collect::<Vec<_>>());
            }
        }
    }
    let grads: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
    // It fails for unknown tables alone, and `dims` was made from these.
    let Ok(mut plan) = Planner::default().plan(&sites, &dims, 1) else {
        return Vec::new();
    };
    for table in &mut plan.tables {
        table.statistics = statistics_of(table.table);
    }
    let merged = plan.tables.iter().map(|table| {
        let mut rows = vec![0.0; table.keys().len() * table.dim];
        table.merge(&grads, &mut rows);
        (table.table, table.keys().to_vec(), rows)
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_equal_keys_are_summed_by_weight_and_tables_without_keys_are_left_out() {
        let part = |keys: Vec<u64>, value: f32| RoundGradient {
            tables: vec![
                (0, vec![], vec![]),
                (2, keys.clone(), vec![value; 2 * keys.len()]),
            ],
            dense: vec![value],
            state: vec![],
            weight: 1.0,
        };
        let (one, two) = (part(vec![7, 8], 1.0), part(vec![8, 9], 3.0));
        let merged = merge(&Store::new(0, 1), &[(&one, 0.5), (&two, 0.25)]);
        let rows = vec![0.5, 0.5, 1.25, 1.25, 0.75, 0.75];
        assert_eq!(merged.tables, vec![(2, vec![7, 8, 9], rows)]);
        assert_eq!(merged.dense, vec![1.25]);
        assert_eq!(merged.weight, 0.75);
    }
}
