//! The connections of a ring: each rank makes some, and waits for those that others make.

use std::sync::mpsc::Sender;
use std::time::Instant;

use crate::error::RingError;
use crate::hello::{Hello, Link};
use crate::listener::{Key, RingListener};
use crate::message::Lane;
use crate::schedule::partners;
use crate::watch::say_absent;
use crate::world::{Options, World};

/// The connections of a rank.
pub(crate) struct Lanes {
    /// From the left, and to the right.
    pub(crate) control: [Lane; 2],
    pub(crate) left: Lane,
    pub(crate) right: Lane,
    pub(crate) pairs: Vec<Lane>,
    /// The connections that others made last as long as these.
    pub(crate) held: Vec<Sender<()>>,
}

/// Makes the connections of a rank, and waits for those that others make.
///
/// The neighbours may have all of their connections. They learn from this rank alone who is missing.
pub(crate) fn connect(
    listener: &RingListener,
    world: &World,
    options: &Options,
    deadline: Instant,
) -> Result<Lanes, RingError> {
    let forming = Forming {
        listener,
        world,
        options,
        deadline,
        size: world.members.len() as u32,
    };
    let mut to_right = None;
    let connected = forming.connect(&mut to_right);
    if let Err(error) = &connected
        && let Some(absent) = error.rank()
    {
        let from_left = listener.take(forming.key_of_left(Link::Control), Instant::now());
        let from_left = from_left.iter().map(|incoming| &incoming.socket);
        from_left
            .chain(to_right.iter().map(|lane: &Lane| &lane.socket))
            .for_each(|socket| say_absent(socket, world, absent));
        listener.forget_before(world.id + 1);
    }
    connected
}

struct Forming<'a> {
    listener: &'a RingListener,
    world: &'a World,
    options: &'a Options,
    deadline: Instant,
    size: u32,
}

impl Forming<'_> {
    fn connect(&self, to_right: &mut Option<Lane>) -> Result<Lanes, RingError> {
        let rank = self.world.rank;
        let right = (rank + 1) % self.size;
        let control = self.reach(Link::Control, right)?;
        *to_right = Some(control.clone());
        let data = self.reach(Link::Data, right)?;
        let partners: Vec<u32> = partners(rank as usize, self.size as usize)
            .into_iter()
            .map(|peer| peer as u32)
            .collect();
        let higher = partners.iter().filter(|&&peer| peer > rank);
        let reached = higher.map(|&peer| self.reach(Link::Pair, peer));
        let mut pairs = reached.collect::<Result<Vec<_>, _>>()?;

        // The lower rank of two partners connects.
        let lower = partners.iter().filter(|&&peer| peer < rank);
        let from_lower = lower.map(|&peer| (self.world.id, Link::Pair, peer));
        let mut held = Vec::new();
        let [from_left, left] = [Link::Control, Link::Data].map(|link| self.key_of_left(link));
        let from_left = self.wait_for(from_left, &mut held)?;
        let left = self.wait_for(left, &mut held)?;
        for key in from_lower {
            pairs.push(self.wait_for(key, &mut held)?);
        }
        Ok(Lanes {
            control: [from_left, control],
            left,
            right: data,
            pairs,
            held,
        })
    }

    fn key_of_left(&self, link: Link) -> Key {
        let left = (self.world.rank + self.size - 1) % self.size;
        (self.world.id, link, left)
    }

    fn reach(&self, link: Link, peer: u32) -> Result<Lane, RingError> {
        let hello = Hello::new(link, self.world.id, self.world.rank, peer, self.size);
        let address = &self.world.members[peer as usize];
        let unix_sockets = self.options.unix_sockets;
        let connected = self
            .listener
            .connect(address, &hello, unix_sockets, self.deadline);
        let socket = connected.map_err(|error| not_formed(self.world, peer, error.to_string()))?;
        Ok(Lane { peer, socket })
    }

    fn wait_for(&self, key: Key, held: &mut Vec<Sender<()>>) -> Result<Lane, RingError> {
        let (_, _, peer) = key;
        let Some(incoming) = self.listener.take(key, self.deadline) else {
            let seconds = self.options.timeout.as_secs_f64();
            let why = format!("has not joined within {seconds} s");
            return Err(not_formed(self.world, peer, why));
        };
        held.push(incoming.held);
        let own = Hello::new(Link::Data, self.world.id, peer, self.world.rank, self.size);
        match incoming.hello.difference(&own) {
            Some(words) => Err(not_formed(self.world, peer, words)),
            None => Ok(Lane {
                peer,
                socket: incoming.socket,
            }),
        }
    }
}

fn not_formed(world: &World, rank: u32, why: String) -> RingError {
    RingError::NotFormed {
        world: world.id,
        rank,
        address: world.members[rank as usize].clone(),
        why,
    }
}
