//! Runs a rule over slices, eight elements at a time.

use crate::rules::Rule;

/// Rows of an embedding table that are to be updated, wherever they lie.
pub trait Rows {
    /// Return the number of rows.
    fn len(&self) -> usize;

    /// Return whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return row `i`, which is asked for once.
    fn row(&mut self, i: usize) -> Row<'_>;
}

/// One row: what is updated, and by what.
#[derive(Debug)]
pub struct Row<'a> {
    /// The weights.
    pub weights: &'a mut [f32],
    /// The slots, one after the other, each as long as the weights.
    pub slots: &'a mut [f32],
    /// The gradient, as long as the weights.
    pub gradient: &'a [f32],
}

/// Update each row.
#[inline(always)]
pub(crate) fn run_rows<const SLOTS: usize>(rule: &impl Rule<SLOTS>, rows: &mut impl Rows) {
    for i in 0..rows.len() {
        let row = rows.row(i);
        run(rule, row.weights, row.slots, row.gradient);
    }
}

/// Elements in a block: one AVX2 register.
const LANES: usize = 8;

/// Update `weights` and its slots by `gradients`; all of one length, slots one after the other.
///
/// A block is copied into arrays, updated there and copied back: the compiler then knows that
/// nothing overlaps, and keeps each array in one register.
#[inline(always)]
pub(crate) fn run<const SLOTS: usize>(
    rule: &impl Rule<SLOTS>,
    weights: &mut [f32],
    slots: &mut [f32],
    gradients: &[f32],
) {
    let n = gradients.len();
    let weights = &mut weights[..n];
    let slots = &mut slots[..SLOTS * n];
    let whole = n - n % LANES;
    let mut at = 0;
    while at < whole {
        block::<SLOTS, LANES>(rule, weights, slots, gradients, at);
        at += LANES;
    }
    while at < n {
        block::<SLOTS, 1>(rule, weights, slots, gradients, at);
        at += 1;
    }
    rule.finish(weights, slots);
}

#[inline(always)]
fn block<const SLOTS: usize, const WIDTH: usize>(
    rule: &impl Rule<SLOTS>,
    weights: &mut [f32],
    slots: &mut [f32],
    gradients: &[f32],
    at: usize,
) {
    let n = gradients.len();
    let mut w = [0.0; WIDTH];
    let mut g = [0.0; WIDTH];
    let mut s = [[0.0; WIDTH]; SLOTS];
    w.copy_from_slice(&weights[at..at + WIDTH]);
    g.copy_from_slice(&gradients[at..at + WIDTH]);
    for (k, slot) in s.iter_mut().enumerate() {
        slot.copy_from_slice(&slots[k * n + at..k * n + at + WIDTH]);
    }
    for i in 0..WIDTH {
        let (new, new_slots) = rule.apply(w[i], std::array::from_fn(|k| s[k][i]), g[i]);
        w[i] = new;
        for k in 0..SLOTS {
            s[k][i] = new_slots[k];
        }
    }
    weights[at..at + WIDTH].copy_from_slice(&w);
    for (k, slot) in s.iter().enumerate() {
        slots[k * n + at..k * n + at + WIDTH].copy_from_slice(slot);
    }
}
