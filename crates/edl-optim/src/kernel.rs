//! Runs a rule over slices, eight or sixteen elements at a time.

use std::cell::Cell;

use crate::around::Around;
use crate::prefetch::{prefetch_floats, work_ahead};
use crate::rules::Rule;

/// One row of an embedding table: its weights and slots, and their gradient.
///
/// A row has cells, so that several borrowed rows may lie side by side, or be the same.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The weights, then the slots, one after the other, each as long as the gradient.
    pub values: &'a [Cell<f32>],
    /// The gradient.
    pub gradient: &'a [f32],
}

/// Update rows of `DIM` weights; of any number, where it is 0.
///
/// A processor looks a few hundred instructions ahead: the fewer a row takes, the more requests are
/// under way.
#[inline(always)]
pub(crate) fn run_rows<const WIDTH: usize, const DIM: usize, const SLOTS: usize>(
    rule: &impl Rule<SLOTS>,
    around: &Around,
    rows: &[Row<'_>],
) {
    let ask = |row: &Row<'_>| {
        let dim = if DIM == 0 { row.gradient.len() } else { DIM };
        prefetch_floats(row.values.as_ptr().cast(), dim * (1 + SLOTS));
        prefetch_floats(row.gradient.as_ptr(), dim);
    };
    work_ahead(rows, ask, |_, row| {
        let dim = if DIM == 0 { row.gradient.len() } else { DIM };
        let (weights, slots) = row.values[..dim * (1 + SLOTS)].split_at(dim);
        run::<WIDTH, SLOTS>(rule, around, weights, slots, &row.gradient[..dim]);
    });
}

/// The elements in a block: one AVX2 register. AVX-512 allows blocks of twice this size.
pub(crate) const LANES: usize = 8;

/// Update `weights` and its slots by `gradients`, in blocks of `WIDTH` elements; all of one length,
/// slots one after the other.
///
/// A block is copied into arrays, updated there and copied back: the compiler then knows that
/// nothing overlaps, and keeps each array in one register.
#[inline(always)]
pub(crate) fn run<const WIDTH: usize, const SLOTS: usize>(
    rule: &impl Rule<SLOTS>,
    around: &Around,
    weights: &[Cell<f32>],
    slots: &[Cell<f32>],
    gradients: &[f32],
) {
    let n = gradients.len();
    let weights = &weights[..n];
    let slots = &slots[..SLOTS * n];
    if let Some(decay) = &around.decay {
        decay.decay(weights);
    }
    let mut at = 0;
    while at + WIDTH <= n {
        block::<SLOTS, WIDTH>(rule, weights, slots, gradients, at);
        at += WIDTH;
    }
    while WIDTH > LANES && at + LANES <= n {
        block::<SLOTS, LANES>(rule, weights, slots, gradients, at);
        at += LANES;
    }
    while at < n {
        block::<SLOTS, 1>(rule, weights, slots, gradients, at);
        at += 1;
    }
    rule.finish(weights, slots);
    if let Some(constraint) = &around.constraint {
        constraint.hold(weights);
    }
}

#[inline(always)]
fn block<const SLOTS: usize, const WIDTH: usize>(
    rule: &impl Rule<SLOTS>,
    weights: &[Cell<f32>],
    slots: &[Cell<f32>],
    gradients: &[f32],
    at: usize,
) {
    let n = gradients.len();
    let slot = |k: usize| &slots[k * n + at..][..WIDTH];
    let weights = &weights[at..][..WIDTH];
    let mut w = load::<WIDTH>(weights);
    let mut s: [[f32; WIDTH]; SLOTS] = std::array::from_fn(|k| load(slot(k)));
    let mut g = [0.0; WIDTH];
    g.copy_from_slice(&gradients[at..][..WIDTH]);
    for i in 0..WIDTH {
        let (new, new_slots) = rule.apply(w[i], std::array::from_fn(|k| s[k][i]), g[i]);
        w[i] = new;
        for k in 0..SLOTS {
            s[k][i] = new_slots[k];
        }
    }
    store(weights, &w);
    for (k, values) in s.iter().enumerate() {
        store(slot(k), values);
    }
}

#[inline(always)]
fn load<const WIDTH: usize>(cells: &[Cell<f32>]) -> [f32; WIDTH] {
    std::array::from_fn(|i| cells[i].get())
}

#[inline(always)]
fn store<const WIDTH: usize>(cells: &[Cell<f32>], values: &[f32; WIDTH]) {
    for (cell, &value) in cells.iter().zip(values) {
        cell.set(value);
    }
}
