//! Small vectors, of numbers or of bytes: recursive doubling, each step a message of all of it.
//!
//! Numbers travel as float32 always. A message fits into what the system buffers for a connection,
//! so both ends may send before they receive.

use crate::message::{Header, Lane, Trouble};
use crate::numbers;
use crate::schedule::{Exchange, doubling};

/// Vectors of at most so many numbers go this way.
pub(crate) const SMALL_NUMBERS: usize = 8 << 10;
const WORD_BYTES: usize = size_of::<u32>();

/// The connections to one's partners, and room for what they send.
pub(crate) struct Doubling {
    rank: usize,
    size: usize,
    steps: Vec<(Exchange, Lane)>,
    came: Vec<u32>,
}

impl Doubling {
    /// `lane` gives the connection to a partner.
    pub(crate) fn new(rank: usize, size: usize, lane: impl Fn(usize) -> Lane) -> Self {
        let steps = doubling(rank, size).into_iter();
        Self {
            rank,
            size,
            steps: steps.map(|step| (step, lane(step.peer()))).collect(),
            came: Vec::new(),
        }
    }

    /// Adds up the vectors of all ranks, and what their headers say of weights. All get the same
    /// bits: partners add the same two vectors, and `a + b` is `b + a`.
    pub(crate) fn run(&mut self, own: Header, sum: &mut [f32]) -> Result<u64, Trouble> {
        self.exchange(own, bytemuck::cast_slice_mut(sum), |came, sum| {
            numbers::add(bytemuck::cast_slice(came), bytemuck::cast_slice_mut(sum));
        })
    }

    /// Writes the numbers of all ranks into `all`, by rank.
    ///
    /// Each rank has zeros where the others write. A part that is too long for one message is sent
    /// in several.
    pub(crate) fn gather(
        &mut self,
        own: Header,
        bytes: &[u8],
        all: &mut [u8],
    ) -> Result<(), Trouble> {
        let (rank, size) = (self.rank, self.size);
        let most = (SMALL_NUMBERS / size).max(1) * WORD_BYTES;
        let mut words = Vec::new();
        for start in (0..bytes.len()).step_by(most) {
            let part = start..bytes.len().min(start + most);
            let each = part.len().div_ceil(WORD_BYTES) * WORD_BYTES;
            words.clear();
            words.resize(size * each / WORD_BYTES, 0_u32);
            let mine = &mut bytemuck::cast_slice_mut(&mut words)[rank * each..];
            mine[..part.len()].copy_from_slice(&bytes[part.clone()]);
            self.exchange(own, &mut words, |came, words| {
                words
                    .iter_mut()
                    .zip(came)
                    .for_each(|(word, came)| *word |= came);
            })?;
            let said: &[u8] = bytemuck::cast_slice(&words);
            for (said, all) in said.chunks(each).zip(all.chunks_mut(bytes.len())) {
                all[part.clone()].copy_from_slice(&said[..part.len()]);
            }
        }
        Ok(())
    }

    /// Makes one vector of those of all ranks; returns the sum of the weights of their headers.
    fn exchange(
        &mut self,
        own: Header,
        whole: &mut [u32],
        combine: fn(&[u32], &mut [u32]),
    ) -> Result<u64, Trouble> {
        let mut header = Header {
            numbers: whole.len() as u32,
            ..own
        };
        for (step, (exchange, lane)) in self.steps.iter().enumerate() {
            header.step = step as u32;
            match exchange {
                Exchange::Give(_) | Exchange::Return(_) | Exchange::Swap(_) => {
                    lane.send(&header, bytemuck::cast_slice(whole))?;
                }
                Exchange::Take(_) | Exchange::Await(_) => {}
            }
            match exchange {
                Exchange::Give(_) | Exchange::Return(_) => {}
                Exchange::Await(_) => {
                    header.weight = receive(lane, &header, whole)?;
                }
                Exchange::Take(_) | Exchange::Swap(_) => {
                    self.came.resize(whole.len(), 0);
                    header.weight += receive(lane, &header, &mut self.came)?;
                    combine(&self.came, whole);
                }
            }
        }
        Ok(header.weight)
    }
}

fn receive(lane: &Lane, own: &Header, words: &mut [u32]) -> Result<u64, Trouble> {
    let header = lane.receive_header()?;
    if let Some(words) = header.difference(own) {
        return Err(lane.broken(words));
    }
    if header.numbers as usize != words.len() {
        return Err(lane.broken(format!(
            "{} numbers, expected {}",
            header.numbers,
            words.len()
        )));
    }
    lane.receive(bytemuck::cast_slice_mut(words))?;
    Ok(header.weight)
}
