//! A rule of the user's own, beside the same rule of Keras: equal to the last bit.

use std::cell::Cell;
use std::collections::BTreeMap;

use edl_optim::{NodeSpec, OptimError, Optimizer, ProgramSpec, Row};

use crate::gradient;

const WEIGHT: usize = 0;
const GRADIENT: usize = 1;
const RATE: usize = 2;
const STEP: usize = 3;
const SLOT: usize = 4;

fn op(name: &str, args: &[usize]) -> NodeSpec {
    NodeSpec {
        op: name.to_owned(),
        args: args.to_vec(),
        value: 0.0,
    }
}

fn constant(value: f64) -> NodeSpec {
    NodeSpec {
        op: "constant".to_owned(),
        args: Vec::new(),
        value,
    }
}

/// `a += g * g; w -= lr * g / sqrt(a + 1e-7)`, as Keras' Adagrad has it.
fn adagrad() -> ProgramSpec {
    let nodes = vec![
        op("multiply", &[GRADIENT, GRADIENT]), // 5
        op("add", &[SLOT, 5]),                 // 6: the accumulator
        op("multiply", &[RATE, GRADIENT]),     // 7
        constant(1e-7),                        // 8
        op("add", &[6, 8]),
        op("sqrt", &[9]),
        op("divide", &[7, 10]),
        op("subtract", &[WEIGHT, 11]),
    ];
    ProgramSpec {
        slots: vec![("accumulator".to_owned(), 0.1)],
        nodes,
        weight: 12,
        new_slots: vec![6],
    }
}

#[test]
fn a_rule_of_ones_own_gives_the_bits_of_the_built_in_one() {
    let own = Optimizer::own(&adagrad(), &BTreeMap::new()).unwrap();
    let keras = Optimizer::new("adagrad", &BTreeMap::new()).unwrap();
    assert_eq!(own.slots(), keras.slots());
    for dim in [1, 7, 16, 128, 300] {
        let updated = |optimizer: Optimizer| {
            let mut rows = vec![0.25_f32; 50 * 2 * dim];
            for row in rows.chunks_exact_mut(2 * dim) {
                let (weights, slots) = row.split_at_mut(dim);
                optimizer.fill_slots(weights, slots);
            }
            for step in 1..4 {
                let gradients: Vec<f32> = (0..60 * dim).map(|i| gradient(i, step)).collect();
                let cells = Cell::from_mut(&mut rows[..]).as_slice_of_cells();
                // Ten rows come twice, next to each other and apart.
                let numbers = (0..50).chain([49, 3, 49]).chain(40..47);
                let together = numbers.zip(gradients.chunks_exact(dim));
                let together = together.map(|(number, gradient)| Row {
                    values: &cells[number * 2 * dim..][..2 * dim],
                    gradient,
                });
                let step = optimizer.step(0.05, step as u64);
                step.update_rows::<0>(&together.collect::<Vec<_>>());
            }
            let (mut weights, mut slots) = (vec![0.5; dim], vec![0.1; dim]);
            let step = optimizer.step(0.05, 9);
            step.update(&mut weights, &mut slots, &rows[..dim]);
            step.update_scalar(&mut weights, &mut slots, &rows[dim..2 * dim]);
            [rows, weights, slots]
        };
        assert_eq!(updated(own), updated(keras), "rows of {dim}");
    }
}

#[test]
fn every_operation_gives_what_its_name_says() {
    let of = |nodes: Vec<NodeSpec>, weight: f32, gradient: f32| {
        let program = ProgramSpec {
            slots: vec![],
            weight: 3 + nodes.len(),
            nodes,
            new_slots: vec![],
        };
        let mut found = [weight; 9];
        let step = Optimizer::own(&program, &BTreeMap::new())
            .unwrap()
            .step(0.5, 3);
        step.update(&mut found, &mut [], &[gradient; 9]);
        assert!(found.iter().all(|f| f.to_bits() == found[0].to_bits()));
        found[0]
    };
    for (name, expected) in [
        ("add", 1.5),
        ("subtract", 2.5),
        ("multiply", -1.0),
        ("divide", -4.0),
        ("power", 2.0_f32.powf(-0.5)),
        ("minimum", -0.5),
        ("maximum", 2.0),
        ("less", 0.0),
        ("less_equal", 0.0),
        ("equal", 0.0),
    ] {
        assert_eq!(of(vec![op(name, &[WEIGHT, GRADIENT])], 2.0, -0.5), expected);
    }
    for (name, of_gradient) in [
        ("negative", -0.25_f32),
        ("sqrt", 0.5),
        ("abs", 0.25),
        ("sign", 1.0),
        ("exp", 0.25_f32.exp()),
        ("log", 0.25_f32.ln()),
    ] {
        assert_eq!(of(vec![op(name, &[GRADIENT])], 2.0, 0.25), of_gradient);
        assert_eq!(
            of(vec![constant(0.25), op(name, &[4])], 2.0, 9.0),
            of_gradient
        );
    }
    assert_eq!(of(vec![op("sign", &[GRADIENT])], 2.0, -3.0), -1.0);
    assert!(of(vec![op("maximum", &[WEIGHT, GRADIENT])], f32::NAN, 1.0).is_nan());
    assert!(of(vec![op("maximum", &[WEIGHT, GRADIENT])], 1.0, f32::NAN).is_nan());
    let chosen = vec![
        op("less", &[GRADIENT, WEIGHT]),
        op("where", &[4, RATE, STEP]),
    ];
    assert_eq!(of(chosen.clone(), 2.0, 1.0), 0.5);
    assert_eq!(of(chosen, 1.0, 2.0), 3.0);
    // What depends on rate and step alone is computed in double precision.
    let exact = vec![constant(0.1), op("power", &[4, STEP])];
    assert_eq!(of(exact, 0.0, 0.0), 0.1_f64.powi(3) as f32);
}

#[test]
fn what_is_no_program_is_refused() {
    let refused = |change: fn(&mut ProgramSpec)| {
        let mut program = adagrad();
        change(&mut program);
        match Optimizer::own(&program, &BTreeMap::new()).unwrap_err() {
            OptimError::BadProgram(error) => error.to_string(),
            other => panic!("{other}"),
        }
    };
    assert!(refused(|p| p.nodes[0].op = "sin".into()).contains("operation 'sin'; expected one of"));
    assert!(refused(|p| p.nodes[0].args[1] = 5).contains("value 5 is used before it is there"));
    assert!(refused(|p| p.nodes[5].args.push(1)).contains("'sqrt' takes 1 values, found 2"));
    assert!(refused(|p| p.weight = 99).contains("value 99 is used before it is there"));
    assert!(refused(|p| p.new_slots.clear()).contains("0 new values of 1 slots"));
    assert!(refused(|p| p.slots[0].1 = f64::NAN).contains("slot 'accumulator' begins with NaN"));
    assert!(refused(|p| p.nodes = vec![constant(1.0); 65]).contains("expected at most 64 and 8"));
    assert!(refused(|p| p.nodes = vec![constant(1.0); 31]).contains("more than 32 constants"));
}
