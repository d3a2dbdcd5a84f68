//! The connections of a bridge, and the queue of those with work. The table reserves room for all of them at
//! the start and reuses free slots.

use super::{
    connection::{Connection, Outcome, Side},
    pipes::Pipes,
};
use crate::{
    control::MOST_CONNECTIONS,
    sys::{Arena, Errno, Fd},
};

/// A slot: free, or with a connection, which may be in the queue.
struct Place {
    connection: Option<Connection>,
    queued: bool,
    /// The next slot in the queue, or the next free one. A slot is never in both lists.
    next: Option<u32>,
}

pub(super) struct Table {
    places: Arena<Place>,
    alive: usize,
    free: Option<u32>,
    first: Option<u32>,
    last: Option<u32>,
    finishing: bool,
}

impl Table {
    pub(super) fn new() -> Result<Self, Errno> {
        let places = Arena::new(MOST_CONNECTIONS as usize)?;
        Ok(Self { places, alive: 0, free: None, first: None, last: None, finishing: false })
    }

    /// The number of connections.
    pub(super) fn alive(&self) -> usize {
        self.alive
    }

    /// Whether any connection has work.
    pub(super) fn has_work(&self) -> bool {
        self.first.is_some()
    }

    /// Adds a connection. Returns its token, or `None` if the table is full; that closes the connection.
    pub(super) fn insert(&mut self, connection: Connection) -> Option<u64> {
        let place = Place { connection: Some(connection), queued: false, next: None };
        let index = match self.free {
            Some(index) => {
                let free = self.place(index)?;
                let next = free.next;
                *free = place;
                self.free = next;
                index
            }
            None => u32::try_from(self.places.push(place)?).ok()?,
        };
        self.alive = self.alive.saturating_add(1);
        Some(u64::from(index) << 1)
    }

    /// The sockets of a connection.
    pub(super) fn ends(&mut self, token: u64) -> Option<[&Fd; 2]> {
        Some(self.place(index_of(token)?)?.connection.as_ref()?.ends())
    }

    /// Closes a connection that is not in the queue.
    pub(super) fn remove(&mut self, token: u64) {
        if let Some(index) = index_of(token) {
            self.vacate(index);
        }
    }

    /// From now on a connection ends once everything that its client sent was passed on. Some may have ended
    /// already.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
        for index in 0.. {
            match self.place(index) {
                Some(place) if place.connection.is_some() => self.queue(index),
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Records an epoll event and queues the connection.
    pub(super) fn mark(&mut self, number: u64, events: u32) {
        let (side, token) = Side::split(number);
        let Some(index) = index_of(token) else { return };
        let Some(connection) = self.place(index).and_then(|place| place.connection.as_mut()) else { return };
        connection.mark(side, events);
        self.queue(index);
    }

    /// Gives the first connection in the queue a turn. Returns `false` if the queue is empty.
    pub(super) fn turn(&mut self, pipes: &mut Pipes) -> bool {
        let Some(index) = self.first else { return false };
        let finishing = self.finishing;
        let Some(place) = self.place(index) else { return false };
        let next = place.next.take();
        place.queued = false;
        let outcome = match &mut place.connection {
            Some(connection) => match connection.turn(pipes) {
                Outcome::Waits if finishing && connection.has_sent() => Outcome::Over,
                outcome => outcome,
            },
            None => Outcome::Waits,
        };
        if let (Outcome::Over, Some(connection)) = (&outcome, &place.connection) {
            connection.close_orderly();
        }
        self.first = next;
        if next.is_none() {
            self.last = None;
        }
        match outcome {
            Outcome::More => self.queue(index),
            Outcome::Waits => {}
            Outcome::Over | Outcome::Broken => self.vacate(index),
        }
        true
    }

    fn place(&mut self, index: u32) -> Option<&mut Place> {
        self.places.get(index as usize)
    }

    /// Appends a connection to the queue unless it is in it already.
    fn queue(&mut self, index: u32) {
        let Some(place) = self.place(index) else { return };
        if place.queued {
            return;
        }
        place.queued = true;
        match self.last.replace(index).and_then(|last| self.place(last)) {
            Some(last) => last.next = Some(index),
            None => self.first = Some(index),
        }
    }

    fn vacate(&mut self, index: u32) {
        let free = self.free;
        let Some(place) = self.place(index) else { return };
        if place.connection.take().is_some() {
            place.next = free;
            self.free = Some(index);
            self.alive = self.alive.saturating_sub(1);
        }
    }
}

fn index_of(token: u64) -> Option<u32> {
    u32::try_from(token >> 1).ok()
}
