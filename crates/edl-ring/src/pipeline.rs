//! Reduces large vectors: segments go around the ring, several blocks at a time.
//!
//! The thread that reduces receives, adds and keeps. It also sends, if the system's buffer takes a
//! segment at once: to wake another thread for each segment would cost more. Other segments go to a
//! thread that waits for room. Buffers move between the two threads, so the threads share no
//! memory. A segment that is added to stays in the cache until it is sent.
//!
//! **No rank waits for ever.** Each rank has [`BLOCKS_AT_ONCE`] blocks under way, and one more
//! buffer than blocks. A block has as many segments under way in the whole ring as there are ranks.
//! A rank that begins another block has ended the last journey of one segment of the block before.
//! So there are never more segments under way than ranks times blocks. Then at least one rank has a
//! free buffer, and that rank receives.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use crate::error::RingError;
use crate::message::{Header, Lane, SEGMENT_NUMBERS, Trouble};
use crate::numbers::{Finish, Weight, narrow, widen};
use crate::pieces::{Inputs, Outputs};
use crate::schedule::{Arrival, Cut, Task, arrival, num_arrivals};
use crate::watch::Reporter;

/// While one segment is added to, others are sent and received.
const BLOCKS_AT_ONCE: usize = 8;

/// How numbers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    Bf16,
}

/// A segment on its way through this rank.
struct Buffer {
    header: Header,
    numbers: Vec<f32>,
    /// The same, as bfloat16.
    halves: Vec<u16>,
    element: Element,
    /// Bytes of header and numbers that were sent at once.
    sent: usize,
}

impl Buffer {
    fn new() -> Self {
        Self {
            header: bytemuck::Zeroable::zeroed(),
            numbers: Vec::new(),
            halves: Vec::new(),
            element: Element::F32,
            sent: 0,
        }
    }

    fn receive(&mut self, lane: &Lane, len: usize, element: Element) -> Result<(), Trouble> {
        self.element = element;
        self.numbers.resize(len, 0.0);
        match element {
            Element::F32 => lane.receive(bytemuck::cast_slice_mut(&mut self.numbers)),
            Element::Bf16 => {
                self.halves.resize(len, 0);
                lane.receive(bytemuck::cast_slice_mut(&mut self.halves))?;
                widen(&self.halves, &mut self.numbers);
                Ok(())
            }
        }
    }

    /// Rounds the numbers to what travels.
    fn pack(&mut self) {
        if self.element == Element::Bf16 {
            self.halves.resize(self.numbers.len(), 0);
            narrow(&self.numbers, &mut self.halves);
        }
    }

    /// The numbers become what the others will read.
    fn round(&mut self) {
        self.pack();
        if self.element == Element::Bf16 {
            widen(&self.halves, &mut self.numbers);
        }
    }

    fn bytes(&self) -> &[u8] {
        match self.element {
            Element::F32 => bytemuck::cast_slice(&self.numbers),
            Element::Bf16 => bytemuck::cast_slice(&self.halves),
        }
    }
}

/// The connections to left and right, the thread that sends, and the buffers.
pub(crate) struct Pipeline {
    rank: usize,
    size: usize,
    left: Lane,
    right: Lane,
    /// The channel to the sending thread; `None` once that thread must end.
    full: Option<Sender<Buffer>>,
    /// The channel of buffers that were sent.
    empty: Receiver<Buffer>,
    /// The buffers that are free now.
    spare: Vec<Buffer>,
    /// How many the sending thread has.
    handed_over: usize,
    sending: Option<JoinHandle<()>>,
}

/// One reduction.
pub(crate) struct Reduction<'r, 'a, 'b> {
    pub(crate) header: Header,
    pub(crate) element: Element,
    pub(crate) finish: Finish,
    pub(crate) inputs: &'r Inputs<'a>,
    pub(crate) outputs: &'r mut Outputs<'a, 'b>,
}

impl Pipeline {
    pub(crate) fn start(
        (rank, size): (usize, usize),
        left: Lane,
        right: Lane,
        reporter: Reporter,
    ) -> Result<Self, RingError> {
        let (full, to_send) = mpsc::channel();
        let (sent, empty) = mpsc::channel();
        let to_right = right.clone();
        let work = move || send_all(&to_right, &to_send, &sent, &reporter);
        let sending = thread::Builder::new()
            .name("ring-send".to_owned())
            .spawn(work);
        let sending = sending
            .map_err(|error| RingError::System(format!("no thread to send with: {error}")))?;
        Ok(Self {
            rank,
            size,
            left,
            right,
            full: Some(full),
            empty,
            spare: (0..=BLOCKS_AT_ONCE).map(|_| Buffer::new()).collect(),
            handed_over: 0,
            sending: Some(sending),
        })
    }

    /// The connections to left and right, while no segments are on them.
    pub(crate) fn lanes(&self) -> (&Lane, &Lane) {
        (&self.left, &self.right)
    }

    /// Adds up the vectors of all ranks; returns the weight of all.
    pub(crate) fn run(&mut self, reduction: &mut Reduction<'_, '_, '_>) -> Result<u64, Trouble> {
        let cut = Cut::new(reduction.inputs.len(), SEGMENT_NUMBERS, self.size);
        let num_blocks = cut.num_blocks();
        for block in 0..num_blocks.min(BLOCKS_AT_ONCE) {
            let buffer = self.free_buffer()?;
            self.begin_block(reduction, &cut, block, buffer)?;
        }
        let mut total = reduction.header.weight;
        // For each block under way, its number and its next step.
        let mut under_way: [(usize, usize); BLOCKS_AT_ONCE] = std::array::from_fn(|b| (b, 0));
        for _ in 0..num_blocks * num_arrivals(self.size) {
            let mut buffer = self.free_buffer()?;
            let header = self.left.receive_header()?;
            let place = &mut under_way[header.block as usize % BLOCKS_AT_ONCE];
            let (block, step) = *place;
            let due = arrival(self.rank, self.size, step);
            let range = cut.segment(block, due.segment);
            self.check(&header, &reduction.header, (block, step, range.len()))?;
            buffer.header = header;
            buffer.receive(&self.left, range.len(), reduction.element)?;
            total = self.take(reduction, &mut buffer, due, range.start);
            if due.task != Task::KeepLast {
                place.1 += 1;
                buffer.header.step += 1;
                self.send(buffer)?;
                continue;
            }
            *place = (block + BLOCKS_AT_ONCE, 0);
            if place.0 < num_blocks {
                self.begin_block(reduction, &cut, place.0, buffer)?;
            } else {
                self.spare.push(buffer);
            }
        }
        self.wait_until_sent()?;
        Ok(total)
    }

    /// Does the next task of a segment; returns the weight of the ranks whose numbers are in it.
    fn take(
        &self,
        reduction: &mut Reduction<'_, '_, '_>,
        buffer: &mut Buffer,
        due: Arrival,
        start: usize,
    ) -> u64 {
        let Reduction { header, finish, .. } = reduction;
        if matches!(due.task, Task::Add | Task::Complete) {
            let range = start..start + buffer.numbers.len();
            let weight = Weight::of(header.weight);
            reduction.inputs.read(range, |here, own| {
                weight.add(own, &mut buffer.numbers[here])
            });
            buffer.header.weight += header.weight;
        }
        match due.task {
            Task::Add => buffer.pack(),
            Task::Complete => {
                finish.apply(buffer.header.weight, &mut buffer.numbers);
                buffer.round();
                reduction.outputs.write(start, &buffer.numbers);
            }
            Task::Keep | Task::KeepLast => reduction.outputs.write(start, &buffer.numbers),
        }
        buffer.header.weight
    }

    /// Sends this rank's own segment of a block.
    fn begin_block(
        &mut self,
        reduction: &Reduction<'_, '_, '_>,
        cut: &Cut,
        block: usize,
        mut buffer: Buffer,
    ) -> Result<(), Trouble> {
        let range = cut.segment(block, self.rank);
        buffer.element = reduction.element;
        buffer.header = Header {
            block: block as u32,
            step: 0,
            numbers: range.len() as u32,
            ..reduction.header
        };
        buffer.numbers.resize(range.len(), 0.0);
        let weight = Weight::of(reduction.header.weight);
        reduction.inputs.read(range, |here, own| {
            weight.scale(own, &mut buffer.numbers[here])
        });
        buffer.pack();
        self.send(buffer)
    }

    fn check(
        &self,
        header: &Header,
        own: &Header,
        (block, step, len): (usize, usize, usize),
    ) -> Result<(), Trouble> {
        if let Some(words) = header.difference(own) {
            return Err(self.left.broken(words));
        }
        let found = (
            header.block as usize,
            header.step as usize,
            header.numbers as usize,
        );
        if found != (block, step, len) {
            return Err(self.left.broken(format!(
                "{} numbers of block {} at step {}, expected {len} of block {block} at step {step}",
                found.2, found.0, found.1
            )));
        }
        Ok(())
    }

    fn free_buffer(&mut self) -> Result<Buffer, Trouble> {
        match self.spare.pop() {
            Some(buffer) => Ok(buffer),
            None => self.wait_for_a_buffer(),
        }
    }

    /// Sends at once what fits, behind all that the sending thread has; it gets the rest.
    fn send(&mut self, mut buffer: Buffer) -> Result<(), Trouble> {
        while let Ok(sent) = self.empty.try_recv() {
            self.handed_over -= 1;
            self.spare.push(sent);
        }
        buffer.sent = 0;
        if self.handed_over == 0 {
            buffer.sent = self.right.send_at_once(&buffer.header, buffer.bytes())?;
            if buffer.sent == size_of::<Header>() + buffer.bytes().len() {
                self.spare.push(buffer);
                return Ok(());
            }
        }
        self.handed_over += 1;
        let full = self.full.as_ref().ok_or(Trouble::Ended)?;
        full.send(buffer).map_err(|_| Trouble::Ended)
    }

    /// Waits until all buffers are back: then all segments have been sent.
    fn wait_until_sent(&mut self) -> Result<(), Trouble> {
        while self.handed_over > 0 {
            let buffer = self.wait_for_a_buffer()?;
            self.spare.push(buffer);
        }
        Ok(())
    }

    fn wait_for_a_buffer(&mut self) -> Result<Buffer, Trouble> {
        let buffer = self.empty.recv().map_err(|_| Trouble::Ended)?;
        self.handed_over -= 1;
        Ok(buffer)
    }
}

/// The thread that sends: it ends with the pipeline, or when the connection fails.
fn send_all(right: &Lane, full: &Receiver<Buffer>, sent: &Sender<Buffer>, reporter: &Reporter) {
    for buffer in full {
        if let Err(trouble) = right.send_rest(&buffer.header, buffer.bytes(), buffer.sent) {
            // The ring ends, and with it the wait of whoever reduces; what is in the channel is lost.
            reporter.settle(trouble);
            return;
        }
        if sent.send(buffer).is_err() {
            return;
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.full = None;
        if let Some(sending) = self.sending.take() {
            // A panic was printed where it happened.
            let _ = sending.join();
        }
    }
}
