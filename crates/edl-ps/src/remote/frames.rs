//! What goes into the frames of pushes and pulls, and where their answers go.

use std::ops::Range;

use edl_store::{PullMode, dense_range};

use crate::dedup::{Plan, TablePlan};
use crate::frame::{Element, Entry, FLAG_CREATE, FLAG_VECTORS, Kind, Op, Outgoing, joined};
use crate::half_rows::narrow;
use crate::replicas::{Gradients, Minibatch, Pull};
use crate::synchrony::{Round, Step};

/// Cuts a flat vector, or the place for one, into what each replica holds of it.
pub(super) fn ranges_of(len: usize, num_replicas: usize) -> impl Fn(usize) -> Range<usize> {
    move |replica| dense_range(len, replica as u32, num_replicas as u32)
}

/// The operands that name a step.
pub(super) fn step_args(step: Step) -> [u64; 4] {
    [step.task, joined(step.lease, step.index), 0, 0]
}

/// The operands of a commit.
pub(super) fn commit_args(round: &Round) -> [u64; 4] {
    let learning_rate = u64::from(round.learning_rate.to_bits());
    [round.version, 0, learning_rate, 0]
}

/// Adds the keys of a pull from one replica.
pub(super) fn add_keys<'a>(frame: Outgoing<'a>, plan: &'a Plan, replica: usize) -> Outgoing<'a> {
    plan.tables.iter().fold(frame, |frame, table| {
        frame.keys(table.table, &table.keys()[table.range(replica)])
    })
}

/// One minibatch's gradients, cut by replica.
pub(super) struct PushFrames<'a> {
    plan: &'a Plan,
    gradients: &'a Gradients<'a>,
    /// Of those tables whose rows travel as 16-bit floats.
    halves: Vec<Vec<u16>>,
    args: [u64; 3],
    versions: &'a [u64],
}

impl<'a> PushFrames<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        gradients: &'a Gradients<'a>,
        minibatch: &Minibatch,
        versions: &'a [u64],
    ) -> Self {
        Self {
            plan,
            gradients,
            halves: halves_of(plan, gradients.rows),
            args: [
                minibatch.task,
                joined(minibatch.lease, minibatch.index),
                joined(minibatch.num_records, minibatch.learning_rate.to_bits()),
            ],
            versions,
        }
    }

    /// What one replica is sent.
    pub(super) fn frame(&self, op: Op, replica: usize) -> Outgoing<'_> {
        let [task, lease_and_index, records_and_rate] = self.args;
        let version = self.versions[replica];
        let frame = Outgoing::new(op).args([task, lease_and_index, records_and_rate, version]);
        let Gradients { rows, dense, state } = self.gradients;
        let tables = self.plan.tables.iter().zip(*rows).zip(&self.halves);
        let dense_of = ranges_of(dense.len(), self.versions.len());
        let state_of = ranges_of(state.len(), self.versions.len());
        tables
            .fold(frame, |frame, ((table, grads), halves)| {
                let frame = frame.keys(table.table, &table.keys()[table.range(replica)]);
                let (number, dim) = (table.table, table.dim as u32);
                let range = table.row_range(replica);
                match table.element {
                    Element::F16 | Element::Bf16 => {
                        frame.half_rows(number, dim, table.element, &halves[range])
                    }
                    Element::U8 | Element::U64 | Element::F32 => {
                        frame.rows(number, dim, &grads[range])
                    }
                }
            })
            .dense(&dense[dense_of(replica)])
            .state(&state[state_of(replica)])
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

fn rows_entry(table: &TablePlan, replica: usize) -> Entry {
    Entry {
        kind: Kind::Rows,
        element: table.element,
        table: table.table,
        width: table.dim as u32,
        count: table.range(replica).len() as u64,
    }
}

fn vector_entry(kind: Kind, len: usize) -> Entry {
    Entry {
        kind,
        element: kind.element(),
        table: 0,
        width: 1,
        count: len as u64,
    }
}

impl Pull<'_> {
    pub(super) fn flags(&self) -> u32 {
        let create = match self.mode {
            PullMode::Create => FLAG_CREATE,
            PullMode::ReadOnly => 0,
        };
        create | self.vectors.as_ref().map_or(0, |_| FLAG_VECTORS)
    }

    /// Where the arrays of one replica's answer go.
    pub(super) fn places(&mut self, replica: usize, count: usize) -> Vec<(Entry, &mut [f32])> {
        let tables = self.plan.tables.iter().zip(self.rows.iter_mut());
        let mut places: Vec<(Entry, &mut [f32])> = tables
            .map(|(table, rows)| {
                let place = &mut rows[table.row_range(replica)];
                (rows_entry(table, replica), place)
            })
            .collect();
        if let Some(vectors) = &mut self.vectors {
            let dense = ranges_of(vectors.dense.len(), count)(replica);
            let state = ranges_of(vectors.state.len(), count)(replica);
            let dense = &mut vectors.dense[dense];
            let state = &mut vectors.state[state];
            places.push((vector_entry(Kind::Dense, dense.len()), dense));
            places.push((vector_entry(Kind::State, state.len()), state));
        }
        places
    }
}
