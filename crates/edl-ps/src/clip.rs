//! Clips the gradient of a minibatch, while one process has the whole of it.

use std::ops::Range;

use edl_store::{Clip, ModelSpec};

/// The clipping of a model's gradients, as Keras clips a gradient that is one tensor.
pub(crate) struct Clipping {
    clip: Clip,
    /// The range of each variable in the dense vector.
    variables: Vec<Range<usize>>,
}

impl Clipping {
    /// Returns the clipping of a model whose dense variables have been checked, if the model has
    /// one.
    pub(crate) fn of(model: &ModelSpec) -> Option<Self> {
        let variable = |v: &edl_store::VariableSpec| {
            let first = v.offset as usize;
            first..first + v.shape.iter().product::<u64>() as usize
        };
        model.clip.as_ref().map(|clip| Self {
            clip: *clip,
            variables: model.dense.iter().map(variable).collect(),
        })
    }

    /// Clip the gradients of all tables, equal ids summed, and of the dense vector.
    pub(crate) fn apply(&self, rows: &mut [&mut [f32]], dense: &mut [f32]) {
        match self.clip {
            Clip::Value { limit } => {
                // A NaN passes, to be seen.
                let clip = |g: &mut f32| *g = g.min(limit).max(-limit);
                for gradient in rows.iter_mut().map(|rows| &mut **rows).chain([dense]) {
                    gradient.iter_mut().filter(|g| !g.is_nan()).for_each(clip);
                }
            }
            Clip::Norm { limit } => {
                for table in rows {
                    let norm = sum_of_squares(table).sqrt();
                    scale(table, factor(norm, limit));
                }
                for variable in &self.variables {
                    let gradient = &mut dense[variable.clone()];
                    let norm = sum_of_squares(gradient).sqrt();
                    scale(gradient, factor(norm, limit));
                }
            }
            Clip::GlobalNorm { limit } => {
                let tables: f64 = rows.iter().map(|table| sum_of_squares(table)).sum();
                let norm = (tables + sum_of_squares(dense)).sqrt();
                // A norm that is not finite makes all of the gradient NaN, to be seen.
                let factor = if norm.is_finite() {
                    factor(norm, limit)
                } else {
                    f32::NAN
                };
                rows.iter_mut().for_each(|table| scale(table, factor));
                scale(dense, factor);
            }
        }
    }
}

/// Returns the factor that brings a norm down to the limit.
fn factor(norm: f64, limit: f32) -> f32 {
    if norm <= f64::from(limit) {
        return 1.0;
    }
    (f64::from(limit) / norm) as f32
}

fn scale(gradient: &mut [f32], factor: f32) {
    if factor != 1.0 {
        gradient.iter_mut().for_each(|g| *g *= factor);
    }
}

/// In double precision, in eight sums that a processor adds up at the same time.
fn sum_of_squares(values: &[f32]) -> f64 {
    let (blocks, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        for (sum, &value) in sums.iter_mut().zip(block) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    let rest = rest.iter().map(|&v| f64::from(v) * f64::from(v));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two variables of the dense vector: 4 elements and 12.
    fn clipped(clip: Clip, table: &[f32], dense: &[f32; 16]) -> (Vec<f32>, Vec<f32>) {
        let clipping = Clipping {
            clip,
            variables: vec![0..4, 4..16],
        };
        let (mut table, mut dense) = (table.to_vec(), dense.to_vec());
        clipping.apply(&mut [&mut table, &mut []], &mut dense);
        (table, dense)
    }

    fn norm(values: &[f32]) -> f32 {
        values.iter().map(|v| v * v).sum::<f32>().sqrt()
    }

    #[test]
    fn each_table_and_variable_has_its_own_norm() {
        let dense = std::array::from_fn(|i| if i < 4 { 0.1 } else { 3.0 });
        let (rows, dense) = clipped(Clip::Norm { limit: 2.0 }, &[5.0; 9], &dense);
        assert!((norm(&rows) - 2.0).abs() < 1e-6);
        assert_eq!(dense[..4], [0.1; 4]);
        assert!((norm(&dense[4..]) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn a_global_norm_is_of_all_tables_and_variables() {
        let before = (vec![2.0; 9], [1.0; 16]);
        let (rows, dense) = clipped(Clip::GlobalNorm { limit: 3.0 }, &before.0, &before.1);
        let together = (norm(&rows).powi(2) + norm(&dense).powi(2)).sqrt();
        assert!((together - 3.0).abs() < 1e-6);
        assert_eq!(rows[0], 2.0 * dense[0]);
        let (rows, dense) = clipped(Clip::GlobalNorm { limit: 8.0 }, &before.0, &before.1);
        assert_eq!((rows, dense), (before.0, before.1.to_vec()));
    }

    #[test]
    fn values_are_clipped_one_by_one() {
        let dense = std::array::from_fn(|i| i as f32 - 8.0);
        let (rows, dense) = clipped(Clip::Value { limit: 1.5 }, &[-2.0, 0.5, 2.0], &dense);
        assert_eq!(rows, [-1.5, 0.5, 1.5]);
        assert_eq!(dense[5..12], [-1.5, -1.5, -1.0, 0.0, 1.0, 1.5, 1.5]);
    }

    #[test]
    fn what_is_no_number_is_not_hidden() {
        for clip in [
            Clip::Norm { limit: 1.0 },
            Clip::GlobalNorm { limit: 1.0 },
            Clip::Value { limit: 1.0 },
        ] {
            let (rows, _) = clipped(clip, &[1.0, f32::NAN, 2.0], &[0.0; 16]);
            assert!(rows[1].is_nan());
        }
        let (rows, dense) = clipped(
            Clip::GlobalNorm { limit: 1.0 },
            &[f32::INFINITY],
            &[1.0; 16],
        );
        assert!(rows[0].is_nan() && dense[0].is_nan());
    }

    #[test]
    fn a_gradient_of_zeros_stays() {
        for clip in [Clip::Norm { limit: 1.0 }, Clip::GlobalNorm { limit: 1.0 }] {
            let (rows, dense) = clipped(clip, &[0.0; 3], &[0.0; 16]);
            assert_eq!((rows, dense), (vec![0.0; 3], vec![0.0; 16]));
        }
    }
}
