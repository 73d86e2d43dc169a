//! Each optimizer against its formula, computed in double precision element by element.

use std::cell::Cell;
use std::collections::BTreeMap;

use edl_optim::{Constraint, OptimError, Optimizer, Row};

use self::reference::{ADAM, CASES, Settings, ftrl, nadam};

mod own;
mod reference;

/// Gradients between -1 and 1 that look like noise.
fn gradient(i: usize, step: usize) -> f32 {
    ((i * 7919 + step * 104_729) % 2003) as f32 / 1001.0 - 1.0
}

const LEN: usize = 37;
const STEPS: usize = 100;

#[test]
fn a_hundred_steps_follow_the_formula() {
    for case in CASES {
        let (optimizer, settings) = (case.optimizer(), case.settings());
        let mut weights: Vec<f32> = (0..LEN).map(|i| i as f32 / 20.0 - 0.9).collect();
        let mut slots = vec![f32::NAN; LEN * optimizer.num_slots()];
        optimizer.fill_slots(&weights, &mut slots);
        let mut plain: Vec<(f64, Vec<f64>)> = weights
            .iter()
            .map(|&w| (f64::from(w), case.first_slots(w)))
            .collect();
        for step in 0..STEPS {
            let rate = 0.05 / (1.0 + step as f32 / 50.0);
            let gradients: Vec<f32> = (0..LEN).map(|i| gradient(i, step)).collect();
            let t = step + 1;
            optimizer
                .step(rate, t as u64)
                .update(&mut weights, &mut slots, &gradients);
            for ((w, s), g) in plain.iter_mut().zip(&gradients) {
                (case.formula)(&settings, w, s, f64::from(*g), f64::from(rate), t as i32);
            }
        }
        for (i, (w, s)) in plain.iter().enumerate() {
            let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 2e-5 * b.abs().max(1.0);
            assert!(
                close(weights[i], *w),
                "{} weight {i}: {} {w}",
                case.kind,
                weights[i]
            );
            for (k, s) in s.iter().enumerate() {
                let found = slots[k * LEN + i];
                assert!(
                    close(found, *s),
                    "{} slot {k} of {i}: {found} {s}",
                    case.kind
                );
            }
        }
    }
}

#[test]
fn vector_and_scalar_code_give_the_same_bits_at_every_length() {
    for case in CASES {
        let optimizer = case.optimizer();
        for len in [0, 1, 3, 7, 8, 9, 16, 31, 64] {
            let mut weights: Vec<f32> = (0..len).map(|i| gradient(i, 1)).collect();
            let mut slots = vec![0.0; len * optimizer.num_slots()];
            optimizer.fill_slots(&weights, &mut slots);
            let (mut scalar_weights, mut scalar_slots) = (weights.clone(), slots.clone());
            for t in 1..20 {
                let mut gradients: Vec<f32> = (0..len).map(|i| gradient(i, t)).collect();
                if t == 19 {
                    // What a bad model yields must be seen, the same way in both.
                    gradients.iter_mut().step_by(2).for_each(|g| *g = f32::NAN);
                }
                let step = optimizer.step(0.1, t as u64);
                step.update(&mut weights, &mut slots, &gradients);
                step.update_scalar(&mut scalar_weights, &mut scalar_slots, &gradients);
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let ordered = |values: &[f32]| {
                let finite = values
                    .iter()
                    .map(|x| if x.is_nan() { f32::NAN } else { *x });
                bits(&finite.collect::<Vec<_>>())
            };
            assert_eq!(
                ordered(&weights),
                ordered(&scalar_weights),
                "{} {len}",
                case.kind
            );
            assert_eq!(
                ordered(&slots),
                ordered(&scalar_slots),
                "{} {len}",
                case.kind
            );
            assert!(len == 0 || weights[0].is_nan(), "{} hides a NaN", case.kind);
        }
    }
}

#[test]
fn rows_are_updated_as_each_alone() {
    for case in CASES {
        let optimizer = case.optimizer();
        for dim in [1, 5, 16, 27] {
            let width = dim * (1 + optimizer.num_slots());
            // More rows than are asked for ahead of time.
            let mut rows = vec![0.5; 40 * width];
            for row in rows.chunks_exact_mut(width) {
                let (weights, slots) = row.split_at_mut(dim);
                optimizer.fill_slots(weights, slots);
            }
            let mut alone = rows.clone();
            let gradients: Vec<f32> = (0..40 * dim).map(|i| gradient(i, 1)).collect();
            let step = optimizer.step(0.1, 1);
            let cells = Cell::from_mut(&mut rows[..]).as_slice_of_cells();
            let together = cells
                .chunks_exact(width)
                .zip(gradients.chunks_exact(dim))
                .map(|(values, gradient)| Row { values, gradient });
            let together: Vec<Row<'_>> = together.collect();
            match dim {
                16 => step.update_rows::<16>(&together),
                _ => step.update_rows::<0>(&together),
            }
            let parts = alone
                .chunks_exact_mut(width)
                .zip(gradients.chunks_exact(dim));
            for (row, gradients) in parts {
                let (weights, slots) = row.split_at_mut(dim);
                step.update_scalar(weights, slots, gradients);
            }
            assert_eq!(rows, alone, "{} {dim}", case.kind);
        }
    }
}

#[test]
fn slots_are_named_in_the_order_in_which_they_lie() {
    let slots = |kind: &str, params: &[(&str, f64)]| {
        let params = params.iter().map(|&(k, v)| (k.to_owned(), v)).collect();
        Optimizer::new(kind, &params).unwrap().slots()
    };
    assert_eq!(slots("sgd", &[]), [""; 0]);
    assert_eq!(slots("ftrl", &[]), ["accumulator", "linear"]);
    assert_eq!(slots("adam", &[("amsgrad", 1.0)]).len(), 3);
    assert_eq!(
        slots("rmsprop", &[("centered", 1.0), ("momentum", 0.5)]),
        ["velocity", "momentum", "average_gradient"]
    );
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |kind: &str, name: &str, value: f64| {
        Optimizer::new(kind, &BTreeMap::from([(name.to_owned(), value)])).unwrap_err()
    };
    assert_eq!(
        refused("lamb", "beta_1", 0.9).to_string(),
        "unknown optimizer 'lamb'; known are sgd, momentum, adagrad, adadelta, adam, adamw, nadam, \
         adamax, lion, schedule_free_adamw, rmsprop, ftrl, group_ftrl, torch_sgd, torch_adagrad, \
         torch_adam, torch_adamw, torch_rmsprop"
    );
    assert_eq!(
        refused("adagrad", "rho", 0.9).to_string(),
        "optimizer 'adagrad' has no setting 'rho'; it has epsilon, initial_accumulator, \
         weight_decay"
    );
    for (kind, name, value) in [
        ("momentum", "momentum", 1.5),
        ("momentum", "nesterov", 0.5),
        ("adagrad", "epsilon", -1.0),
        ("adam", "beta_1", f64::NAN),
        ("adamw", "weight_decay", f64::INFINITY),
        ("ftrl", "learning_rate_power", 0.5),
        ("ftrl", "l1", -0.1),
        ("schedule_free_adamw", "beta_1", 0.0),
    ] {
        assert!(matches!(
            refused(kind, name, value),
            OptimError::BadSetting(..)
        ));
    }
}

#[test]
fn group_lasso_follows_its_formula_and_sets_whole_rows_to_zero() {
    let params = [("l1", 0.05), ("l2", 0.1), ("beta", 0.5), ("l21", 0.4)];
    let params: BTreeMap<_, _> = params.iter().map(|&(k, v)| (k.to_owned(), v)).collect();
    let optimizer = Optimizer::new("group_ftrl", &params).unwrap();
    let mut settings = params.clone();
    settings.extend([
        ("learning_rate_power".to_owned(), -0.5),
        ("l2_shrinkage".to_owned(), 0.0),
    ]);
    let settings = Settings(settings);
    let mut num_zero = [0; 2];
    // Rows of several widths; some are drawn to a side, others not.
    for (dim, drift) in [(1, 0.0), (4, 0.0), (4, 0.6), (16, 0.02), (19, 0.4)] {
        let mut weights: Vec<f32> = (0..dim).map(|i| i as f32 / 20.0 - 0.3).collect();
        let mut slots = vec![0.0; 2 * dim];
        optimizer.fill_slots(&weights, &mut slots);
        let mut plain: Vec<(f64, [f64; 2])> = weights
            .iter()
            .map(|&w| (f64::from(w), [0.1_f32.into(), 0.0]))
            .collect();
        for step in 0..STEPS {
            let gradients: Vec<f32> = (0..dim).map(|i| gradient(i, step) / 4.0 + drift).collect();
            let t = step as u64 + 1;
            optimizer
                .step(0.05, t)
                .update(&mut weights, &mut slots, &gradients);
            for ((w, s), g) in plain.iter_mut().zip(&gradients) {
                ftrl(&settings, w, s, f64::from(*g), f64::from(0.05_f32), 1);
            }
            let rest = |z: f64| z.clamp(-0.05, 0.05) - z;
            let norm = plain
                .iter()
                .map(|(_, s)| rest(s[1]).powi(2))
                .sum::<f64>()
                .sqrt();
            let share = (1.0 - 0.4 * (dim as f64).sqrt() / norm).max(0.0);
            plain.iter_mut().for_each(|(w, _)| *w *= share);
            let is_zero = weights.iter().all(|&w| w == 0.0);
            num_zero[usize::from(is_zero)] += 1;
            // At the edge rounding may decide.
            assert!(is_zero == (share == 0.0) || (share < 1e-4 && norm.is_finite()));
        }
        for (i, (w, s)) in plain.iter().enumerate() {
            assert!(
                (f64::from(weights[i]) - w).abs() < 1e-4,
                "{dim} {i}: {} {w}",
                weights[i]
            );
            assert!((f64::from(slots[dim + i]) - s[1]).abs() < 1e-3);
        }
    }
    assert!(num_zero[0] > 50 && num_zero[1] > 50, "{num_zero:?}");
}

#[test]
fn a_dense_vector_has_no_groups() {
    let with = |kind: &str, l21: &[(&str, f64)]| {
        let params = l21.iter().map(|&(k, v)| (k.to_owned(), v)).collect();
        let optimizer = Optimizer::new(kind, &params).unwrap();
        let (mut weights, mut slots) = ([1.0_f32; 5], [0.5_f32; 10]);
        let (_, step) = optimizer.step(0.1, 1).of_a_flat_vector();
        step.update(&mut weights, &mut slots, &[0.3; 5]);
        weights
    };
    assert_eq!(with("group_ftrl", &[("l21", 100.0)]), with("ftrl", &[]));
}

#[test]
fn nadam_knows_its_schedule_at_any_step() {
    let optimizer = Optimizer::new("nadam", &BTreeMap::new()).unwrap();
    let settings = Settings(ADAM.iter().map(|&(k, v)| (k.to_owned(), v)).collect());
    for t in [1, 2, 999, 1000, 1001, 5000] {
        let (mut weights, mut slots) = ([0.5], [0.1, 0.2]);
        let (mut plain, mut plain_slots) = (0.5, [0.1, 0.2]);
        optimizer
            .step(0.05, t)
            .update(&mut weights, &mut slots, &[0.3]);
        nadam(&settings, &mut plain, &mut plain_slots, 0.3, 0.05, t as i32);
        assert!((f64::from(weights[0]) - plain).abs() < 1e-6, "{t}");
    }
    let (mut weights, mut slots) = ([0.5], [0.1, 0.2]);
    let step = optimizer.step(0.05, u64::MAX >> 8);
    step.update(&mut weights, &mut slots, &[0.3]);
    assert!(weights[0].is_finite());
}

#[test]
fn a_row_is_held_to_its_constraint_after_the_rule() {
    let norm = |row: &[f32]| row.iter().map(|w| w * w).sum::<f32>().sqrt();
    let updated = |constraint| {
        let step = Optimizer::new("sgd", &BTreeMap::new())
            .unwrap()
            .step(1.0, 1)
            .with_constraint(Some(constraint));
        let mut rows = vec![0.5_f32; 40 * 19];
        let gradient: Vec<f32> = (0..19).map(|i| gradient(i, 1)).collect();
        let cells = Cell::from_mut(&mut rows[..]).as_slice_of_cells();
        let together = cells.chunks_exact(19).map(|values| Row {
            values,
            gradient: &gradient,
        });
        step.update_rows::<0>(&together.collect::<Vec<_>>());
        let mut alone = vec![0.5; 19];
        step.update_scalar(&mut alone, &mut [], &gradient);
        for row in rows.chunks_exact(19) {
            assert_eq!(row, alone);
        }
        alone
    };
    let bounds = |min, max, rate| Constraint::Norm {
        min,
        max,
        rate,
        epsilon: 1e-7,
    };

    let free = updated(bounds(0.0, 100.0, 1.0));
    let held = updated(Constraint::NonNegative);
    let expected: Vec<f32> = free.iter().map(|w| w.max(0.0)).collect();
    for (held, expected) in held.iter().zip(&expected) {
        assert!((held - expected).abs() < 1e-6);
    }
    assert!(free.iter().any(|&w| w < 0.0) && norm(&free) > 2.0);
    assert!((norm(&updated(bounds(0.0, 2.0, 1.0))) - 2.0).abs() < 1e-5);
    assert!((norm(&updated(bounds(1.0, 1.0, 1.0))) - 1.0).abs() < 1e-5);
    let half = (norm(&free) + 100.0) / 2.0;
    assert!((norm(&updated(bounds(100.0, 200.0, 0.5))) - half).abs() < 1e-3);
}

#[test]
fn a_constraint_lets_a_nan_be_seen() {
    let constraint = Constraint::Norm {
        min: 0.0,
        max: 1.0,
        rate: 1.0,
        epsilon: 1e-7,
    };
    for constraint in [constraint, Constraint::NonNegative] {
        let mut row = [f32::NAN, 1.0];
        constraint.apply(&mut row);
        assert!(row[0].is_nan());
    }
}

#[test]
fn the_document_says_what_slots_cost() {
    let document = include_str!("../../../../docs/designs/store.md");
    let mut described = Vec::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, names, slots, of_16, of_1, _] = cells[..] else {
            continue;
        };
        let slots: Vec<&str> = slots.split(", ").filter(|slot| !slot.is_empty()).collect();
        for kind in names.split('`').skip(1).step_by(2) {
            let (mut params, words) = (BTreeMap::new(), names.rsplit('`').next().unwrap());
            let mut set = |name: &str, value: f64, wanted: bool| {
                wanted.then(|| params.insert(name.to_owned(), value));
            };
            set(
                "momentum",
                0.5,
                ["momentum", "both"].iter().any(|w| words.contains(w)),
            );
            set(
                "centered",
                1.0,
                ["centered", "both"].iter().any(|w| words.contains(w)),
            );
            set("amsgrad", 1.0, words.contains("amsgrad"));
            assert_eq!(
                Optimizer::new(kind, &params).unwrap().slots(),
                slots,
                "{line}"
            );
            described.push(kind);
        }
        let bytes = |dim: usize| match dim * (1 + slots.len()) {
            floats @ ..=16 => 4 * floats.next_power_of_two(),
            floats => 4 * floats.next_multiple_of(8),
        };
        let said = |cell: &str| cell.trim_end_matches(" bytes").parse().ok();
        assert_eq!(
            (said(of_16), said(of_1)),
            (Some(bytes(16)), Some(bytes(1))),
            "{line}"
        );
    }
    for case in CASES.iter().filter(|case| !case.kind.starts_with("torch")) {
        assert!(described.contains(&case.kind), "{} is missing", case.kind);
    }
}
