//! Lets ranks on one host reduce through memory that they share.
//!
//! The memory is an anonymous file (`memfd`). Rank 0 makes it, and it goes from rank to rank over
//! their Unix sockets. It has no name, so a killed rank leaves nothing behind: the file vanishes
//! with the last process that has it. It is sealed against shrinking, so no rank can take it away
//! from another.
//!
//! A vector goes block by block. In its turn each rank writes the segments that others complete
//! into its own part of the block. Then each rank completes one segment by reading the segments of
//! the others. At last each rank copies the segments that the others have completed. The order of
//! adding is that of the ring, so the sum has the same bits as in the ring.
//!
//! This is the one file of the crate with `unsafe` in it. **The argument**: each float of the
//! memory has one writer in each phase of a turn, and readers only in later phases. A rank posts a
//! number when its phase is over (`Release`). A reader waits for the posts of the writers
//! (`Acquire`). So in this process no reference overlaps a write. Other processes of the job run
//! the same code. A process that does not may put wrong numbers here, but every bit pattern is an
//! `f32` or an integer, and no length or offset is ever read from the memory. Apart from that
//! memory, [`copy_past_caches`] has stores of x86-64 that are `unsafe`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::available_parallelism;

use edl_wire::Socket;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::thread::futex;

use self::copying::way_to_copy;
use crate::message::{Header, Lane, Trouble};
use crate::numbers::{Weight, add};
use crate::pipeline::Reduction;
use crate::schedule::{Cut, order_of_adding};
use crate::watch::Watch;

mod copying;

/// Numbers of a block: what a rank writes in a turn stays in its second-level cache.
const BLOCK_NUMBERS: usize = 128 << 10;
/// Turns that may be under way at once.
const DEPTH: usize = 3;
/// Vectors of at most so many numbers go in one phase: each rank adds up all of it.
const FLAT_NUMBERS: usize = 8 << 10;
/// Numbers that are added up at a time: they stay in the first-level cache.
const TILE_NUMBERS: usize = 2 << 10;
/// A cache line, and the one that is fetched with it.
const LINE: usize = 128;
/// A rank with a processor of its own looks so often before it sleeps.
const LOOKS: u32 = 2000;
/// A rank that sleeps looks so often whether the ring has ended.
const NAP: futex::Timespec = futex::Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The progress of a rank in a turn.
#[derive(Clone, Copy)]
enum Phase {
    /// Its numbers are there.
    Written = 0,
    /// The segment that it completes is there.
    Completed = 1,
    /// It has read what it needs: its turn is over.
    Read = 2,
}
const PHASES: usize = 3;

/// How many turns a rank is through a phase of, and how many sleep until it is through one more.
#[repr(C, align(128))]
struct Post {
    turns: AtomicU32,
    sleepers: AtomicU32,
}

/// Where everything lies.
#[derive(Clone, Copy)]
struct Layout {
    size: usize,
}

impl Layout {
    fn post(self, rank: usize, phase: Phase) -> usize {
        (rank * PHASES + phase as usize) * LINE
    }

    /// Returns the place of a rank's header in a turn.
    fn header(self, slot: usize, rank: usize) -> usize {
        (self.size * PHASES + slot * self.size + rank) * LINE
    }

    /// A rank's numbers in a turn.
    fn numbers(self, slot: usize, rank: usize) -> usize {
        self.header(DEPTH, 0) + (slot * self.size + rank) * BLOCK_NUMBERS * size_of::<f32>()
    }

    fn bytes(self) -> usize {
        self.numbers(DEPTH, 0)
    }
}

/// The memory that the ranks of a ring share.
pub(crate) struct SharedMemory {
    map: MmapRaw,
    layout: Layout,
    rank: usize,
    size: usize,
    /// The first turn of the next reduction.
    turn: u32,
    looks: u32,
    tile: Vec<f32>,
}

/// Rank 0 makes the memory, and each rank passes it to its right. `None` where it cannot be had.
pub(crate) fn share(
    (rank, size): (usize, usize),
    left: &Lane,
    right: &Lane,
) -> Result<Option<SharedMemory>, Trouble> {
    let failed = |lane: &Lane, error: io::Error| Trouble::Connection {
        peer: lane.peer,
        error,
    };
    let layout = Layout { size };
    let memory = if rank == 0 {
        let made = make(layout.bytes());
        made.inspect_err(|error| log::info!("no memory to share: {error}"))
            .ok()
    } else {
        receive(&left.socket).map_err(|error| failed(left, error))?
    };
    if rank + 1 < size {
        let memory = memory.as_ref().map(|memory| memory.as_fd());
        send(&right.socket, memory).map_err(|error| failed(right, error))?;
    }
    let opened = memory.map(|memory| SharedMemory::open(&memory, rank, layout));
    Ok(opened.and_then(|opened| {
        opened
            .inspect_err(|error| log::info!("the shared memory cannot be used: {error}"))
            .ok()
    }))
}

fn make(bytes: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("elasticdl-ring", flags)?;
    rustix::fs::ftruncate(&memory, bytes as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(memory.into())
}

fn unix(socket: &Socket) -> io::Result<BorrowedFd<'_>> {
    match socket {
        Socket::Unix(stream) => Ok(stream.as_fd()),
        Socket::Tcp(_) | Socket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sends a file, or that there is none.
fn send(socket: &Socket, memory: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(memory) = &memory {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(
            memory,
        )));
    }
    let byte = [u8::from(memory.is_some())];
    let data = [IoSlice::new(&byte)];
    rustix::net::sendmsg(unix(socket)?, &data, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &Socket) -> io::Result<Option<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(unix(socket)?, &mut data, &mut control, flags)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file: Option<OwnedFd> = files.next().and_then(|mut files| files.next());
    Ok(file.map(File::from))
}

impl SharedMemory {
    fn open(memory: &File, rank: usize, layout: Layout) -> io::Result<Self> {
        let found = memory.metadata()?.len();
        let is_sealed = rustix::fs::fcntl_get_seals(memory)?.contains(SealFlags::SHRINK);
        if found != layout.bytes() as u64 || !is_sealed {
            return Err(io::Error::other(format!(
                "{found} bytes, sealed: {is_sealed}; expected {}, sealed",
                layout.bytes()
            )));
        }
        let map = MmapOptions::new().len(layout.bytes()).map_raw(memory)?;
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        Ok(Self {
            map,
            layout,
            rank,
            size: layout.size,
            turn: 0,
            // If ranks share processors, a rank that spins keeps another rank from working.
            looks: if layout.size <= cores { LOOKS } else { 0 },
            tile: vec![0.0; TILE_NUMBERS],
        })
    }

    /// Adds up the vectors of all ranks; returns the weight of all.
    pub(crate) fn run(
        &mut self,
        reduction: &mut Reduction<'_, '_, '_>,
        watch: &Watch,
    ) -> Result<u64, Trouble> {
        if reduction.inputs.len() <= FLAT_NUMBERS {
            let total = self.run_flat(reduction, watch)?;
            self.turn = self.turn.wrapping_add(1);
            return Ok(total);
        }
        let cut = Cut::new(reduction.inputs.len(), BLOCK_NUMBERS / self.size, self.size);
        let num_blocks = cut.num_blocks();
        let mut total = 0;
        self.write(reduction, &cut, 0, watch)?;
        for block in 0..num_blocks {
            if block + 1 < num_blocks {
                self.write(reduction, &cut, block + 1, watch)?;
            }
            total = self.complete(reduction, &cut, block, watch)?;
            self.read(reduction, &cut, block, watch)?;
        }
        self.turn = self.turn.wrapping_add(num_blocks as u32);
        Ok(total)
    }

    /// Writes this rank's numbers of the segments that others complete.
    fn write(
        &self,
        reduction: &Reduction<'_, '_, '_>,
        cut: &Cut,
        block: usize,
        watch: &Watch,
    ) -> Result<(), Trouble> {
        let (turn, slot) = self.turn_of(block);
        self.wait_for_slot(turn, watch)?;
        let weight = Weight::of(reduction.header.weight);
        let start = cut.segment(block, 0).start;
        for segment in (0..self.size).filter(|&segment| segment != self.completes(self.rank)) {
            let range = cut.segment(block, segment);
            let place = range.start - start..range.end - start;
            // SAFETY: all have posted that they are through with the turn that had this slot, and
            // nobody reads this rank's part before it posts that it is written.
            let numbers = unsafe { self.numbers_mut(slot, self.rank, place) };
            let inputs = &reduction.inputs;
            inputs.read(range, |here, own| weight.scale(own, &mut numbers[here]));
        }
        // SAFETY: as above.
        unsafe { self.put_header(slot, reduction.header) };
        self.post(turn, Phase::Written);
        Ok(())
    }

    /// Adds up the segment that this rank completes; returns the weight of all.
    fn complete(
        &mut self,
        reduction: &mut Reduction<'_, '_, '_>,
        cut: &Cut,
        block: usize,
        watch: &Watch,
    ) -> Result<u64, Trouble> {
        let (turn, slot) = self.turn_of(block);
        let total = self.wait_for_headers(turn, slot, &reduction.header, watch)?;
        let start = cut.segment(block, 0).start;
        let segment = self.completes(self.rank);
        let range = cut.segment(block, segment);
        let weight = Weight::of(reduction.header.weight);
        let mut tile = std::mem::take(&mut self.tile);
        for at in range.clone().step_by(TILE_NUMBERS) {
            let part = at..range.end.min(at + TILE_NUMBERS);
            let place = part.start - start..part.end - start;
            let sum = &mut tile[..part.len()];
            for (place_in_order, rank) in order_of_adding(segment, self.size).enumerate() {
                if rank == self.rank {
                    // It is the last in the order: its numbers come from where they are.
                    reduction
                        .inputs
                        .read(part.clone(), |here, own| weight.add(own, &mut sum[here]));
                    continue;
                }
                // SAFETY: that rank has posted that it is written, and writes again when this rank
                // has posted that it is through with the turn.
                let numbers = unsafe { self.numbers(slot, rank, place.clone()) };
                if place_in_order == 0 {
                    sum.copy_from_slice(numbers);
                } else {
                    add(numbers, sum);
                }
            }
            reduction.finish.apply(total, sum);
            reduction
                .outputs
                .write_by(part.start, sum, way_to_copy(reduction.inputs.len()));
            // SAFETY: this segment of this rank's part is written by `complete` alone, and nobody
            // reads it before this rank posts that it is completed.
            unsafe { self.numbers_mut(slot, self.rank, place) }.copy_from_slice(sum);
        }
        self.tile = tile;
        self.post(turn, Phase::Completed);
        Ok(total)
    }

    /// Copies what the others have completed.
    fn read(
        &self,
        reduction: &mut Reduction<'_, '_, '_>,
        cut: &Cut,
        block: usize,
        watch: &Watch,
    ) -> Result<(), Trouble> {
        let (turn, slot) = self.turn_of(block);
        let start = cut.segment(block, 0).start;
        for rank in (0..self.size).filter(|&rank| rank != self.rank) {
            let range = cut.segment(block, self.completes(rank));
            self.wait(rank, Phase::Completed, turn, watch)?;
            let place = range.start - start..range.end - start;
            // SAFETY: that rank has posted that it is completed, and writes again when this rank
            // has posted that it is through with the turn.
            let numbers = unsafe { self.numbers(slot, rank, place) };
            reduction
                .outputs
                .write_by(range.start, numbers, way_to_copy(reduction.inputs.len()));
        }
        self.post(turn, Phase::Read);
        Ok(())
    }

    /// A small vector: all write all of it, and all add up all of it, in the order of ranks.
    fn run_flat(
        &mut self,
        reduction: &mut Reduction<'_, '_, '_>,
        watch: &Watch,
    ) -> Result<u64, Trouble> {
        let (turn, slot) = self.turn_of(0);
        let whole = 0..reduction.inputs.len();
        self.wait_for_slot(turn, watch)?;
        let weight = Weight::of(reduction.header.weight);
        {
            // SAFETY: all have posted that they are through with the turn that had this slot, and
            // nobody reads this rank's part before it posts that it is written.
            let numbers = unsafe { self.numbers_mut(slot, self.rank, whole.clone()) };
            let inputs = &reduction.inputs;
            inputs.read(whole.clone(), |here, own| {
                weight.scale(own, &mut numbers[here])
            });
            // SAFETY: as above.
            unsafe { self.put_header(slot, reduction.header) };
        }
        self.post(turn, Phase::Written);
        let total = self.wait_for_headers(turn, slot, &reduction.header, watch)?;
        for at in whole.clone().step_by(TILE_NUMBERS) {
            let part = at..whole.end.min(at + TILE_NUMBERS);
            let sum = &mut self.tile[..part.len()];
            sum.fill(-0.0);
            for rank in 0..self.size {
                // SAFETY: that rank has posted that it is written, and writes again when this rank
                // has posted that it is through with the turn.
                let numbers = unsafe { numbers(&self.map, self.layout, slot, rank, part.clone()) };
                add(numbers, sum);
            }
            reduction.finish.apply(total, sum);
            reduction.outputs.write(part.start, sum);
        }
        self.post(turn, Phase::Completed);
        self.post(turn, Phase::Read);
        Ok(total)
    }

    /// Writes what all ranks say into `all`, by rank: each reads what the others have written.
    pub(crate) fn gather(
        &mut self,
        own: Header,
        bytes: &[u8],
        all: &mut [u8],
        watch: &Watch,
    ) -> Result<(), Trouble> {
        let (turn, slot) = self.turn_of(0);
        let place = 0..bytes.len().div_ceil(size_of::<f32>());
        self.wait_for_slot(turn, watch)?;
        {
            // SAFETY: all have posted that they are through with the turn that had this slot, and
            // nobody reads this rank's part before it posts that it is written.
            let numbers = unsafe { self.numbers_mut(slot, self.rank, place.clone()) };
            bytemuck::cast_slice_mut(numbers)[..bytes.len()].copy_from_slice(bytes);
            // SAFETY: as above.
            unsafe { self.put_header(slot, own) };
        }
        self.post(turn, Phase::Written);
        self.wait_for_headers(turn, slot, &own, watch)?;
        for (rank, all) in all.chunks_mut(bytes.len().max(1)).enumerate() {
            // SAFETY: that rank has posted that it is written, and writes again when this rank has
            // posted that it is through with the turn.
            let numbers = unsafe { self.numbers(slot, rank, place.clone()) };
            all.copy_from_slice(&bytemuck::cast_slice(numbers)[..bytes.len()]);
        }
        self.post(turn, Phase::Completed);
        self.post(turn, Phase::Read);
        self.turn = self.turn.wrapping_add(1);
        Ok(())
    }

    /// The segment that a rank completes, as in the ring.
    fn completes(&self, rank: usize) -> usize {
        (rank + 1) % self.size
    }

    fn turn_of(&self, block: usize) -> (u32, usize) {
        let turn = self.turn.wrapping_add(block as u32);
        (turn, turn as usize % DEPTH)
    }

    /// Waits until nobody reads what the slot of a turn had before.
    fn wait_for_slot(&self, turn: u32, watch: &Watch) -> Result<(), Trouble> {
        let before = turn.wrapping_sub(DEPTH as u32);
        (0..self.size).try_for_each(|rank| self.wait(rank, Phase::Read, before, watch))
    }

    /// Waits until all have written; returns the weight of all.
    fn wait_for_headers(
        &self,
        turn: u32,
        slot: usize,
        own: &Header,
        watch: &Watch,
    ) -> Result<u64, Trouble> {
        let mut total = 0_u64;
        for rank in 0..self.size {
            self.wait(rank, Phase::Written, turn, watch)?;
            // SAFETY: that rank has posted that it is written, and writes again when this rank has
            // posted that it is through with the turn.
            let header = unsafe { self.header(slot, rank) };
            if let Some(words) = header.difference(own) {
                let peer = rank as u32;
                return Err(Trouble::Words { peer, words });
            }
            total = total.saturating_add(header.weight);
        }
        Ok(total)
    }

    fn post_of(&self, rank: usize, phase: Phase) -> &Post {
        let at = self.layout.post(rank, phase);
        // SAFETY: the place is within the mapping, which lives as long as `self`, and aligned as the
        // mapping begins with a page. A `Post` is atomics alone, which any process may change.
        unsafe { &*self.map.as_ptr().add(at).cast::<Post>() }
    }

    /// This rank is through with a phase of a turn.
    fn post(&self, turn: u32, phase: Phase) {
        let post = self.post_of(self.rank, phase);
        // Either this store is seen by who is about to sleep, or that one's count is seen here.
        post.turns.store(turn.wrapping_add(1), Ordering::SeqCst);
        if post.sleepers.load(Ordering::SeqCst) > 0 {
            // It fails only for an address that is none.
            let _ = futex::wake(&post.turns, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Waits until a rank is through with a phase of a turn, or the ring has ended.
    fn wait(&self, rank: usize, phase: Phase, turn: u32, watch: &Watch) -> Result<(), Trouble> {
        let post = self.post_of(rank, phase);
        let is_through = |turns: u32| (turns.wrapping_sub(turn) as i32) > 0;
        for _ in 0..=self.looks {
            if is_through(post.turns.load(Ordering::Acquire)) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        post.sleepers.fetch_add(1, Ordering::SeqCst);
        let waited = loop {
            let turns = post.turns.load(Ordering::SeqCst);
            if is_through(turns) {
                break Ok(());
            }
            if watch.has_ended() {
                break Err(Trouble::Ended);
            }
            // It returns when woken, when the number is another by now, and after a nap.
            let _ = futex::wait(&post.turns, futex::Flags::empty(), turns, Some(&NAP));
        };
        post.sleepers.fetch_sub(1, Ordering::SeqCst);
        waited
    }

    /// # Safety
    /// Nobody writes there while the reference lives.
    unsafe fn numbers(&self, slot: usize, rank: usize, place: Range<usize>) -> &[f32] {
        // SAFETY: by the caller.
        unsafe { numbers(&self.map, self.layout, slot, rank, place) }
    }

    /// # Safety
    /// Nobody reads or writes there while the reference lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared; who may write is in turns"
    )]
    unsafe fn numbers_mut(&self, slot: usize, rank: usize, place: Range<usize>) -> &mut [f32] {
        let len = place.len();
        // SAFETY: within the mapping as in `numbers`, and nobody else's by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.number(slot, rank, &place), len) }
    }

    fn number(&self, slot: usize, rank: usize, place: &Range<usize>) -> *mut f32 {
        number(&self.map, self.layout, slot, rank, place)
    }

    /// # Safety
    /// Nobody reads this rank's header of the slot.
    unsafe fn put_header(&self, slot: usize, header: Header) {
        let at = self.layout.header(slot, self.rank);
        // SAFETY: within the mapping, aligned to a line, and nobody else's by the caller.
        unsafe { self.map.as_mut_ptr().add(at).cast::<Header>().write(header) };
    }

    /// # Safety
    /// Nobody writes the header of that rank in the slot.
    unsafe fn header(&self, slot: usize, rank: usize) -> Header {
        let at = self.layout.header(slot, rank);
        // SAFETY: within the mapping, aligned to a line, and any bits are a header.
        unsafe { self.map.as_ptr().add(at).cast::<Header>().read() }
    }
}

/// # Safety
/// Nobody writes there while the reference lives.
unsafe fn numbers(
    map: &MmapRaw,
    layout: Layout,
    slot: usize,
    rank: usize,
    place: Range<usize>,
) -> &[f32] {
    let len = place.len();
    // SAFETY: `number` checks that the place is within the mapping, which lives as long as the
    // reference. It is aligned, any bits are floats, and nobody writes there, by the caller.
    unsafe { std::slice::from_raw_parts(number(map, layout, slot, rank, &place), len) }
}

/// Returns the place of a rank's numbers.
fn number(
    map: &MmapRaw,
    layout: Layout,
    slot: usize,
    rank: usize,
    place: &Range<usize>,
) -> *mut f32 {
    assert!(slot < DEPTH && rank < layout.size, "no such part");
    assert!(
        place.start <= place.end && place.end <= BLOCK_NUMBERS,
        "no such place"
    );
    let at = layout.numbers(slot, rank) + place.start * size_of::<f32>();
    map.as_mut_ptr().wrapping_add(at).cast()
}
