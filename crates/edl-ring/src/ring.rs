//! A ring: how it is formed, and which way a vector goes.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use edl_wire::Socket;

use crate::bytes::{Chain, Part};
use crate::doubling::{Doubling, SMALL_NUMBERS};
use crate::error::RingError;
use crate::forming::{Lanes, connect};
use crate::listener::RingListener;
use crate::message::{GATHER, Header, NO_TIMEOUT, Trouble};
use crate::numbers::{Finish, Weight};
use crate::pieces::{Inputs, Outputs};
use crate::pipeline::{Element, Pipeline, Reduction};
#[cfg(target_os = "linux")]
use crate::shared::{self, SharedMemory};
use crate::watch::{Watch, Watched};
use crate::world::{Options, World, check};

/// The vector of a reduction.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// How many samples the numbers of this rank are of; none count if it is 0.
    pub weight: u64,
    /// Divide the sum by the weight of all ranks.
    pub mean: bool,
    /// Send segments as bfloat16; sums are made in float32.
    pub bfloat16: bool,
    /// The reduction is over within this time, or it is an error.
    pub timeout: Duration,
}

/// The ways to the other ranks.
struct Ways {
    // Dropped in this order: the watch says farewell, and shuts the connections down.
    watch: Watch,
    pipeline: Pipeline,
    doubling: Doubling,
    #[cfg(target_os = "linux")]
    shared: Option<SharedMemory>,
    /// The buffer of bytes that are passed on.
    passing: Vec<u8>,
    /// The connections that others made.
    _held: Vec<Sender<()>>,
    transport: &'static str,
}

/// A formed ring. All ranks call [`Ring::all_reduce`] in the same order with as many numbers.
pub struct Ring {
    world: World,
    ways: Option<Ways>,
    /// The buffer of vectors that go by recursive doubling.
    small: Vec<f32>,
    _listener: Arc<RingListener>,
}

impl Ring {
    /// Forms the ring of a world: returns when all ranks have joined.
    ///
    /// # Errors
    /// A rank that did not join in time, or has other members; it is named.
    pub fn form(
        listener: &Arc<RingListener>,
        world: World,
        options: &Options,
    ) -> Result<Self, RingError> {
        check(&world, options)?;
        listener.forget_before(world.id);
        let mut ring = Self {
            world,
            ways: None,
            small: Vec::new(),
            _listener: listener.clone(),
        };
        if ring.size() > 1 {
            let deadline = Instant::now() + options.timeout;
            let lanes = connect(listener, &ring.world, options, deadline)?;
            ring.ways = Some(ring.ways_of(lanes, options)?);
            // Another rank may have begun to form the ring just before this rank would have given
            // up. That rank waits as long for the others: it knows which rank is missing, and is
            // not late itself.
            ring.agree(options, deadline + options.timeout)?;
        }
        Ok(ring)
    }

    /// Returns the transport of numbers.
    pub fn transport(&self) -> &'static str {
        match &self.ways {
            None => "nothing",
            #[cfg(target_os = "linux")]
            Some(ways) if ways.shared.is_some() => "shared memory",
            Some(ways) => ways.transport,
        }
    }

    /// The world that it is the ring of.
    pub fn world(&self) -> &World {
        &self.world
    }

    fn size(&self) -> usize {
        self.world.members.len()
    }

    fn ways_of(&self, lanes: Lanes, options: &Options) -> Result<Ways, RingError> {
        let (rank, size) = (self.world.rank as usize, self.size());
        let mut numbers = vec![lanes.left.socket.clone(), lanes.right.socket.clone()];
        numbers.extend(lanes.pairs.iter().map(|lane| lane.socket.clone()));
        for socket in &numbers {
            let set = socket.set_timeout(NO_TIMEOUT);
            set.map_err(|error| RingError::System(format!("a socket of the ring: {error}")))?;
        }
        let transport = match (&*lanes.left.socket, &*lanes.right.socket) {
            (Socket::Unix(_), Socket::Unix(_)) => "unix",
            (Socket::Tls(_), _) | (_, Socket::Tls(_)) => "tls",
            _ => "tcp",
        };
        let watch = Watch::start(Watched {
            world: self.world.id,
            rank: self.world.rank,
            size: size as u32,
            silence: options.silence,
            neighbours: lanes.control.to_vec(),
            numbers,
        })?;
        let pair = |peer: usize| {
            let found = lanes.pairs.iter().find(|lane| lane.peer as usize == peer);
            found.expect("a connection to each partner").clone()
        };
        let doubling = Doubling::new(rank, size, pair);
        let reporter = watch.reporter();
        let pipeline = Pipeline::start((rank, size), lanes.left, lanes.right, reporter)?;
        Ok(Ways {
            watch,
            pipeline,
            doubling,
            #[cfg(target_os = "linux")]
            shared: None,
            passing: Vec::new(),
            _held: lanes.held,
            transport,
        })
    }

    /// Waits until all ranks are there, and finds out what all of them can use.
    fn agree(&mut self, options: &Options, deadline: Instant) -> Result<(), RingError> {
        let can_share = options.shared_memory && self.transport() == "unix";
        if !self.all_say(can_share, deadline)? {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        {
            let shared = self.share_memory(deadline)?;
            // If one rank has no memory to share, all ranks use the sockets.
            if self.all_say(shared.is_some(), deadline)?
                && let Some(ways) = &mut self.ways
            {
                ways.shared = shared;
            }
        }
        Ok(())
    }

    /// True if all ranks say yes. All have to be asked in the same order.
    fn all_say(&mut self, yes: bool, deadline: Instant) -> Result<bool, RingError> {
        let size = self.world.members.len() as u64;
        let Some(ways) = &mut self.ways else {
            return Ok(yes);
        };
        let votes = ways.together(deadline, |ways, op| {
            let header = Header {
                op,
                weight: u64::from(yes),
                form: VOTE,
                ..bytemuck::Zeroable::zeroed()
            };
            ways.doubling.run(header, &mut [])
        })?;
        Ok(votes == size)
    }

    #[cfg(target_os = "linux")]
    fn share_memory(&mut self, deadline: Instant) -> Result<Option<SharedMemory>, RingError> {
        let place = (self.world.rank as usize, self.size());
        let Some(ways) = &mut self.ways else {
            return Ok(None);
        };
        ways.together(deadline, |ways, _| {
            let (left, right) = ways.pipeline.lanes();
            shared::share(place, left, right)
        })
    }

    /// Adds up the vectors of all ranks, each number times its rank's weight, and writes the sum,
    /// or the mean, into `out`. All ranks get the same bits. Returns the total weight.
    ///
    /// The arrays of `gradients` are read as one vector, and those of `out` are written as one.
    /// Each array of `out` is as long as the array of `gradients` at the same place. If no rank has
    /// samples, the sum is 0.
    ///
    /// # Errors
    /// [`RingError::Ended`] names the rank by which the ring has ended. Then `gradients` are
    /// unchanged, and `out` has no use.
    pub fn all_reduce(
        &mut self,
        gradients: &[&[f32]],
        out: &mut [&mut [f32]],
        request: &Request,
    ) -> Result<u64, RingError> {
        same_lengths(gradients, out)?;
        let inputs = Inputs::new(gradients);
        let mut outputs = Outputs::new(out);
        let finish = if request.mean {
            Finish::Mean
        } else {
            Finish::Sum
        };
        let Some(ways) = &mut self.ways else {
            alone(&inputs, &mut outputs, request);
            return Ok(request.weight);
        };
        let element = if request.bfloat16 {
            Element::Bf16
        } else {
            Element::F32
        };
        let small = &mut self.small;
        ways.together(Instant::now() + request.timeout, |ways, op| {
            let header = Header {
                op,
                count: inputs.len() as u64,
                weight: request.weight,
                form: u32::from(request.mean) | u32::from(request.bfloat16) << 1,
                ..bytemuck::Zeroable::zeroed()
            };
            let mut reduction = Reduction {
                header,
                element,
                finish,
                inputs: &inputs,
                outputs: &mut outputs,
            };
            ways.reduce(&mut reduction, small)
        })
    }

    /// Returns what all ranks say, by rank. Waits for all; each says as many bytes.
    ///
    /// # Errors
    /// [`RingError::Invalid`] for more than [`MAX_GATHER_BYTES`], before anything is sent;
    /// [`RingError::Ended`] names the rank by which the ring has ended.
    pub fn gather(&mut self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>, RingError> {
        at_most(MAX_GATHER_BYTES, bytes.len(), "that a rank says")?;
        let size = self.size();
        let Some(ways) = &mut self.ways else {
            return Ok(bytes.to_vec());
        };
        let mut all = vec![0; size * bytes.len()];
        ways.together(Instant::now() + timeout, |ways, op| {
            let header = Header {
                op,
                count: bytes.len() as u64,
                form: GATHER,
                ..bytemuck::Zeroable::zeroed()
            };
            ways.gather(header, bytes, &mut all)
        })?;
        Ok(all)
    }

    /// Gives bytes to the others, on rank 0; they call [`Ring::take`] or [`Ring::pass_on`] meanwhile,
    /// for as many. It does not wait until all have them.
    ///
    /// # Errors
    /// [`RingError::Invalid`] on another rank; [`RingError::Ended`] names the rank by which the ring
    /// has ended.
    pub fn give(&mut self, bytes: &[u8], timeout: Duration) -> Result<(), RingError> {
        self.broadcast(Part::Give(bytes), timeout)
    }

    /// Writes what rank 0 gives into `out`, which is as long.
    ///
    /// # Errors
    /// As of [`Ring::give`].
    pub fn take(&mut self, out: &mut [u8], timeout: Duration) -> Result<(), RingError> {
        self.broadcast(Part::Take(out), timeout)
    }

    /// Hands so many bytes of rank 0 on, and keeps none.
    ///
    /// # Errors
    /// As of [`Ring::give`].
    pub fn pass_on(&mut self, num_bytes: usize, timeout: Duration) -> Result<(), RingError> {
        self.broadcast(Part::Pass(num_bytes), timeout)
    }

    fn broadcast(&mut self, part: Part<'_>, timeout: Duration) -> Result<(), RingError> {
        let rank = self.world.rank;
        if matches!(part, Part::Give(_)) != (rank == 0) {
            return Err(RingError::Invalid(format!(
                "rank {rank} of a ring: rank 0 gives bytes, all others take them or pass them on"
            )));
        }
        at_most(MAX_BROADCAST_BYTES, part.len(), "of rank 0")?;
        let is_last = rank as usize + 1 == self.size();
        let Some(ways) = &mut self.ways else {
            return Ok(());
        };
        ways.together(Instant::now() + timeout, |ways, op| {
            let (left, right) = ways.pipeline.lanes();
            let mut chain = Chain {
                left,
                right: (!is_last).then_some(right),
                passing: &mut ways.passing,
            };
            chain.run(op, part)
        })
    }
}

/// The most bytes of a rank in one [`Ring::gather`].
pub const MAX_GATHER_BYTES: usize = SMALL_NUMBERS * size_of::<f32>();
/// The most bytes that rank 0 may give at once.
const MAX_BROADCAST_BYTES: usize = 64 << 30;

fn at_most(most: usize, len: usize, what: &str) -> Result<(), RingError> {
    if len <= most {
        return Ok(());
    }
    let words = format!("{len} bytes {what}, {most} at most; send them in pieces");
    Err(RingError::Invalid(words))
}

/// Marks an operation that is no reduction.
const VOTE: u32 = 1 << 31;

impl Ways {
    /// Does what all ranks do at once, watched; `work` is given the number of the operation.
    fn together<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Self, u64) -> Result<T, Trouble>,
    ) -> Result<T, RingError> {
        let op = self.watch.begin(deadline)?;
        let done = work(self, op).map_err(|trouble| self.watch.settle(trouble))?;
        self.watch.finish();
        Ok(done)
    }

    fn gather(&mut self, header: Header, bytes: &[u8], all: &mut [u8]) -> Result<(), Trouble> {
        #[cfg(target_os = "linux")]
        if let Some(shared) = &mut self.shared {
            return shared.gather(header, bytes, all, &self.watch);
        }
        self.doubling.gather(header, bytes, all)
    }

    fn reduce(
        &mut self,
        reduction: &mut Reduction<'_, '_, '_>,
        small: &mut Vec<f32>,
    ) -> Result<u64, Trouble> {
        #[cfg(target_os = "linux")]
        if let Some(shared) = &mut self.shared {
            return shared.run(reduction, &self.watch);
        }
        if reduction.inputs.len() > SMALL_NUMBERS {
            return self.pipeline.run(reduction);
        }
        small.resize(reduction.inputs.len(), 0.0);
        let weight = Weight::of(reduction.header.weight);
        let whole = 0..small.len();
        reduction
            .inputs
            .read(whole, |here, own| weight.scale(own, &mut small[here]));
        let total = self.doubling.run(reduction.header, small)?;
        reduction.finish.apply(total, small);
        reduction.outputs.write(0, small);
        Ok(total)
    }
}

/// A ring of one: its mean is what it has, bit by bit.
fn alone(inputs: &Inputs<'_>, outputs: &mut Outputs<'_, '_>, request: &Request) {
    let weight = Weight::of(if request.mean {
        request.weight.min(1)
    } else {
        request.weight
    });
    let mut scaled = Vec::new();
    inputs.read(0..inputs.len(), |here, own| {
        scaled.resize(own.len(), 0.0);
        weight.scale(own, &mut scaled);
        outputs.write(here.start, &scaled);
    });
}

fn same_lengths(gradients: &[&[f32]], out: &[&mut [f32]]) -> Result<(), RingError> {
    let found: Vec<usize> = out.iter().map(|part| part.len()).collect();
    let wanted: Vec<usize> = gradients.iter().map(|part| part.len()).collect();
    if found == wanted {
        return Ok(());
    }
    Err(RingError::Invalid(format!(
        "the arrays for the result have {found:?} numbers, expected {wanted:?} as the gradients"
    )))
}
