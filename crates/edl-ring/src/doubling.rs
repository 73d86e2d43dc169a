//! Small vectors: recursive doubling, each step a message of the whole vector.
//!
//! They travel as float32 always. A message fits into what the system buffers for a connection, so
//! both ends may send before they receive.

use crate::message::{Header, Lane, Trouble};
use crate::numbers;
use crate::schedule::{Exchange, doubling};

/// Vectors of at most so many numbers go this way.
pub(crate) const SMALL_NUMBERS: usize = 8 << 10;

/// The connections to one's partners, and room for what they send.
pub(crate) struct Doubling {
    steps: Vec<(Exchange, Lane)>,
    came: Vec<f32>,
}

impl Doubling {
    /// `lane` gives the connection to a partner.
    pub(crate) fn new(rank: usize, size: usize, lane: impl Fn(usize) -> Lane) -> Self {
        let steps = doubling(rank, size).into_iter();
        Self {
            steps: steps.map(|step| (step, lane(step.peer()))).collect(),
            came: Vec::new(),
        }
    }

    /// Adds up the vectors of all ranks, and what their headers say of weights. All get the same
    /// bits: partners add the same two vectors, and `a + b` is `b + a`.
    pub(crate) fn run(&mut self, own: Header, sum: &mut [f32]) -> Result<u64, Trouble> {
        let mut header = Header {
            numbers: sum.len() as u32,
            ..own
        };
        for (step, (exchange, lane)) in self.steps.iter().enumerate() {
            header.step = step as u32;
            match exchange {
                Exchange::Give(_) | Exchange::Return(_) | Exchange::Swap(_) => {
                    lane.send(&header, bytemuck::cast_slice(sum))?;
                }
                Exchange::Take(_) | Exchange::Await(_) => {}
            }
            match exchange {
                Exchange::Give(_) | Exchange::Return(_) => {}
                Exchange::Await(_) => {
                    header.weight = receive(lane, &header, sum)?;
                }
                Exchange::Take(_) | Exchange::Swap(_) => {
                    self.came.resize(sum.len(), 0.0);
                    header.weight += receive(lane, &header, &mut self.came)?;
                    numbers::add(&self.came, sum);
                }
            }
        }
        Ok(header.weight)
    }
}

fn receive(lane: &Lane, own: &Header, numbers: &mut [f32]) -> Result<u64, Trouble> {
    let header = lane.receive_header()?;
    if let Some(words) = header.difference(own) {
        return Err(lane.broken(words));
    }
    if header.numbers as usize != numbers.len() {
        return Err(lane.broken(format!(
            "{} numbers, expected {}",
            header.numbers,
            numbers.len()
        )));
    }
    lane.receive(bytemuck::cast_slice_mut(numbers))?;
    Ok(header.weight)
}
