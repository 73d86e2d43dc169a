//! Runs a rule of the user's own over slices and rows.

use std::cell::Cell;

use crate::around::Around;
use crate::kernel::Row;
use crate::prefetch::prefetch_floats;
use crate::program::{Instruction, Numbers, Op, Operand, Program};

/// Elements at hand together. Each register has so many; those of a usual rule are in the first cache.
const BLOCK: usize = 128;
/// Rows at hand together: as many as fill a block, but no more than can be told apart in a moment.
const MOST_ROWS: usize = 16;

type Register = [f32; BLOCK];
type Registers = [Register];

/// A rule of the user's own, with the numbers of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnRule {
    pub(crate) program: &'static Program,
    pub(crate) numbers: Numbers,
}

impl OwnRule {
    /// Update weights and their slots, one after the other, by gradients.
    #[inline(always)]
    pub(crate) fn run(
        &self,
        around: &Around,
        weights: &[Cell<f32>],
        slots: &[Cell<f32>],
        gradients: &[f32],
    ) {
        let mut registers = vec![[0.0; BLOCK]; self.program.num_registers];
        self.run_one(&mut registers, around, weights, slots, gradients);
    }

    /// Update rows, as many together as fill a block. A row that comes twice is updated twice.
    #[inline(always)]
    pub(crate) fn run_rows(&self, around: &Around, rows: &[Row<'_>]) {
        let mut registers = vec![[0.0; BLOCK]; self.program.num_registers];
        let width = 1 + self.program.first_values.len();
        let mut at = 0;
        while at < rows.len() {
            let dim = rows[at].gradient.len();
            let most = (BLOCK / dim.max(1)).clamp(1, MOST_ROWS);
            let here = together(&rows[at..], most);
            for row in rows.iter().skip(at + here.len()).take(2 * most) {
                prefetch_floats(row.values.as_ptr().cast(), dim * width);
                prefetch_floats(row.gradient.as_ptr(), dim);
            }
            if here.len() == 1 {
                let (weights, slots) = here[0].values[..dim * width].split_at(dim);
                self.run_one(&mut registers, around, weights, slots, here[0].gradient);
            } else {
                self.run_block(&mut registers, around, here, dim);
            }
            at += here.len();
        }
    }

    #[inline(always)]
    fn run_one(
        &self,
        registers: &mut Registers,
        around: &Around,
        weights: &[Cell<f32>],
        slots: &[Cell<f32>],
        gradients: &[f32],
    ) {
        let n = gradients.len();
        let weights = &weights[..n];
        if let Some(decay) = &around.decay {
            decay.decay(weights);
        }
        for start in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - start);
            let slot = |k: usize| &slots[k * n + start..][..len];
            load(&mut registers[0], &weights[start..][..len]);
            registers[1][..len].copy_from_slice(&gradients[start..][..len]);
            for k in 0..self.program.first_values.len() {
                load(&mut registers[2 + k], slot(k));
            }
            self.compute(registers, len);
            self.store(registers, self.program.weight, 0, &weights[start..][..len]);
            for (k, &value) in self.program.new_slots.iter().enumerate() {
                self.store(registers, value, 0, slot(k));
            }
        }
        if let Some(constraint) = &around.constraint {
            constraint.hold(weights);
        }
    }

    /// Update rows of one length that fit into a block, none of which comes twice.
    #[inline(always)]
    fn run_block(&self, registers: &mut Registers, around: &Around, rows: &[Row<'_>], dim: usize) {
        for (number, row) in rows.iter().enumerate() {
            let at = number * dim;
            if let Some(decay) = &around.decay {
                decay.decay(&row.values[..dim]);
            }
            registers[1][at..][..dim].copy_from_slice(row.gradient);
            load(&mut registers[0][at..], &row.values[..dim]);
            for k in 0..self.program.first_values.len() {
                load(
                    &mut registers[2 + k][at..],
                    &row.values[(1 + k) * dim..][..dim],
                );
            }
        }
        self.compute(registers, rows.len() * dim);
        for (number, row) in rows.iter().enumerate() {
            let at = number * dim;
            self.store(registers, self.program.weight, at, &row.values[..dim]);
            for (k, &value) in self.program.new_slots.iter().enumerate() {
                self.store(registers, value, at, &row.values[(1 + k) * dim..][..dim]);
            }
            if let Some(constraint) = &around.constraint {
                constraint.hold(&row.values[..dim]);
            }
        }
    }

    #[inline(always)]
    fn compute(&self, registers: &mut Registers, len: usize) {
        for instruction in &self.program.instructions {
            self.execute(registers, instruction, len);
        }
    }

    #[inline(always)]
    fn store(&self, registers: &Registers, value: Operand, at: usize, cells: &[Cell<f32>]) {
        match value {
            Operand::Number(number) => cells.iter().for_each(|c| c.set(self.numbers[number])),
            Operand::Register(register) => {
                let values = &registers[register][at..][..cells.len()];
                for (cell, &value) in cells.iter().zip(values) {
                    cell.set(value);
                }
            }
        }
    }

    #[inline(always)]
    fn execute(&self, registers: &mut Registers, instruction: &Instruction, len: usize) {
        let &Instruction { op, args, out } = instruction;
        // Registers are written once, each after those that it is made of.
        let (before, after) = registers.split_at_mut(out);
        let out = &mut after[0][..len];
        let [a, b, c] = args;
        macro_rules! binary {
            ($f:expr) => {
                match (a, b) {
                    (Operand::Register(a), Operand::Register(b)) => {
                        zip(out, &before[a][..len], &before[b][..len], $f);
                    }
                    (Operand::Register(a), Operand::Number(b)) => {
                        let b = self.numbers[b];
                        map(out, &before[a][..len], |a| $f(a, b));
                    }
                    (Operand::Number(a), Operand::Register(b)) => {
                        let a = self.numbers[a];
                        map(out, &before[b][..len], |b| $f(a, b));
                    }
                    (Operand::Number(a), Operand::Number(b)) => {
                        out.fill($f(self.numbers[a], self.numbers[b]));
                    }
                }
            };
        }
        macro_rules! unary {
            ($f:expr) => {
                match a {
                    Operand::Register(a) => map(out, &before[a][..len], $f),
                    Operand::Number(a) => out.fill($f(self.numbers[a])),
                }
            };
        }
        let truth = |is: bool| f32::from(u8::from(is));
        match op {
            Op::Add => binary!(|a: f32, b: f32| a + b),
            Op::Subtract => binary!(|a: f32, b: f32| a - b),
            Op::Multiply => binary!(|a: f32, b: f32| a * b),
            Op::Divide => binary!(|a: f32, b: f32| a / b),
            Op::Power => binary!(|a: f32, b: f32| a.powf(b)),
            Op::Minimum => binary!(|a: f32, b: f32| if a < b || a.is_nan() { a } else { b }),
            Op::Maximum => binary!(|a: f32, b: f32| if a > b || a.is_nan() { a } else { b }),
            Op::Less => binary!(|a: f32, b: f32| truth(a < b)),
            Op::LessEqual => binary!(|a: f32, b: f32| truth(a <= b)),
            Op::Equal => binary!(|a: f32, b: f32| truth(a == b)),
            Op::Negative => unary!(|a: f32| -a),
            Op::Sqrt => unary!(|a: f32| a.sqrt()),
            Op::Abs => unary!(|a: f32| a.abs()),
            Op::Sign => unary!(|a: f32| if a > 0.0 {
                1.0
            } else if a < 0.0 {
                -1.0
            } else {
                a
            }),
            Op::Exp => unary!(|a: f32| a.exp()),
            Op::Log => unary!(|a: f32| a.ln()),
            Op::Where => {
                let at = |value: Operand, i: usize| match value {
                    Operand::Register(register) => before[register][i],
                    Operand::Number(number) => self.numbers[number],
                };
                for (i, out) in out.iter_mut().enumerate() {
                    *out = if at(a, i) == 0.0 { at(c, i) } else { at(b, i) };
                }
            }
        }
    }
}

/// The first rows, of one length, of which none comes twice.
#[inline(always)]
fn together<'r, 'a>(rows: &'r [Row<'a>], most: usize) -> &'r [Row<'a>] {
    let dim = rows[0].gradient.len();
    let is_new = |number: usize| {
        let row = &rows[number];
        row.gradient.len() == dim
            && rows[..number]
                .iter()
                .all(|other| !std::ptr::eq(other.values.as_ptr(), row.values.as_ptr()))
    };
    let most = most.min(rows.len());
    let len = (1..most).find(|&number| !is_new(number)).unwrap_or(most);
    &rows[..len]
}

#[inline(always)]
fn load(register: &mut [f32], cells: &[Cell<f32>]) {
    for (value, cell) in register.iter_mut().zip(cells) {
        *value = cell.get();
    }
}

#[inline(always)]
fn map(out: &mut [f32], a: &[f32], f: impl Fn(f32) -> f32) {
    for (out, &a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
}

#[inline(always)]
fn zip(out: &mut [f32], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}
