//! One connection: a client, the proxy, and a flow of bytes in each direction. Moves bytes while it can and says what it
//! waits for by what it has marked; opens and watches nothing.

use super::pipes::{Pipe, Pipes};
use crate::{
    kernel::{EAGAIN, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP},
    sys::{self, Errno, Fd},
};

/// Calls of splice(2) in one turn of one flow.
const TURN: usize = 8;

/// Bytes asked for at once: more than a pipe holds.
const MOST: usize = 1 << 20;

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Proxy,
}

impl Side {
    /// The number that epoll tells for this end of the connection `token`, which is even.
    pub(super) fn of(self, token: u64) -> u64 {
        token | u64::from(self == Self::Proxy)
    }

    /// What such a number stands for.
    pub(super) fn split(number: u64) -> (Self, u64) {
        let side = if number & 1 == 0 { Self::Client } else { Self::Proxy };
        (side, number & !1)
    }
}

/// What came of a turn.
pub(super) enum Outcome {
    /// There is more to do at once.
    More,
    /// Nothing can be done until something happens.
    Waits,
    /// Both directions have come to their end.
    Over,
    /// An end is gone without saying that it was done.
    Broken,
}

pub(super) struct Connection {
    client: End,
    proxy: End,
    /// From the client to the proxy.
    up: Flow,
    /// From the proxy to the client.
    down: Flow,
    broken: bool,
}

impl Connection {
    pub(super) fn new(client: Fd, proxy: Fd) -> Self {
        let (client, proxy) = (End::new(client), End::new(proxy));
        Self { client, proxy, up: Flow::default(), down: Flow::default(), broken: false }
    }

    pub(super) fn ends(&self) -> [&Fd; 2] {
        [&self.client.socket, &self.proxy.socket]
    }

    /// Takes in what epoll told of an end.
    pub(super) fn mark(&mut self, side: Side, events: u32) {
        let end = match side {
            Side::Client => &mut self.client,
            Side::Proxy => &mut self.proxy,
        };
        end.readable |= events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR) != 0;
        end.writable |= events & (EPOLLOUT | EPOLLHUP | EPOLLERR) != 0;
        match side {
            // A reset. What it sent before is as lost as what it was to be sent.
            Side::Client => self.broken |= events & EPOLLERR != 0,
            // It takes nothing any more. What it sent before it went is still to be had.
            Side::Proxy if events & EPOLLHUP != 0 => self.up.cut(),
            Side::Proxy => {}
        }
    }

    /// Moves what can be moved without waiting, up to a limit.
    pub(super) fn turn(&mut self, pipes: &mut Pipes) -> Outcome {
        if self.broken {
            return Outcome::Broken;
        }
        let up = match self.up.turn(&mut self.client, &mut self.proxy, pipes) {
            // The proxy reads no more, but may not have said all.
            Err(Lost::Receiver) => {
                self.up.cut();
                false
            }
            Err(Lost::Sender) => return Outcome::Broken,
            Ok(more) => more,
        };
        let Ok(down) = self.down.turn(&mut self.proxy, &mut self.client, pipes) else {
            return Outcome::Broken;
        };
        match (self.up.course, self.down.course) {
            (Course::Over, Course::Over) => Outcome::Over,
            _ if up || down => Outcome::More,
            _ => Outcome::Waits,
        }
    }

    /// Whether the proxy was given all that the client has said.
    pub(super) fn has_sent(&self) -> bool {
        matches!(self.up.course, Course::Over)
    }

    /// Has the client learn, when this is dropped, that it was all.
    pub(super) fn end_whole(&self) {
        // Where it is gone itself there is nobody to learn it.
        let _ = sys::not_reset_when_closed(&self.client.socket);
    }
}

/// A socket, and what it was ready for when last heard of.
struct End {
    socket: Fd,
    readable: bool,
    writable: bool,
}

impl End {
    fn new(socket: Fd) -> Self {
        Self { socket, readable: false, writable: false }
    }
}

/// Which end a flow lost.
enum Lost {
    Sender,
    Receiver,
}

/// Where a flow stands.
#[derive(Clone, Copy, Default)]
enum Course {
    #[default]
    Open,
    /// The sender has said all; some of it may still be held.
    Ending,
    Over,
}

/// One direction.
#[derive(Default)]
struct Flow {
    /// What has been taken from the sender and not yet given to the receiver is in here, that many bytes.
    pipe: Option<Pipe>,
    held: usize,
    course: Course,
}

impl Flow {
    /// Answers whether there is more to do at once.
    fn turn(&mut self, from: &mut End, to: &mut End, pipes: &mut Pipes) -> Result<bool, Lost> {
        let mut moved = true;
        for _ in 0..TURN {
            moved = match self.course {
                _ if self.held > 0 => self.drain(to)?,
                Course::Open => self.fill(from, pipes)?,
                Course::Ending => {
                    self.course = Course::Over;
                    sys::end_writing(&to.socket).map_err(|_| Lost::Receiver)?;
                    false
                }
                Course::Over => false,
            };
            if !moved {
                break;
            }
        }
        if self.held == 0
            && let Some(pipe) = self.pipe.take()
        {
            pipes.give_back(pipe);
        }
        Ok(moved)
    }

    /// Takes from the sender; the pipe is empty. Answers whether it could.
    fn fill(&mut self, from: &mut End, pipes: &mut Pipes) -> Result<bool, Lost> {
        if !from.readable {
            return Ok(false);
        }
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => none.insert(pipes.take().map_err(|_| Lost::Sender)?),
        };
        match sys::splice(&from.socket, &pipe.into, MOST) {
            Ok(0) => self.course = Course::Ending,
            Ok(count) => self.held = count,
            Err(Errno(EAGAIN)) => from.readable = false,
            Err(_) => return Err(Lost::Sender),
        }
        Ok(from.readable)
    }

    /// Gives to the receiver what is held. Answers whether it could.
    fn drain(&mut self, to: &mut End) -> Result<bool, Lost> {
        let Some(pipe) = self.pipe.as_ref().filter(|_| to.writable) else { return Ok(false) };
        match sys::splice(&pipe.out, &to.socket, self.held) {
            Ok(0) => return Err(Lost::Receiver),
            Ok(count) => self.held = self.held.saturating_sub(count),
            Err(Errno(EAGAIN)) => to.writable = false,
            Err(_) => return Err(Lost::Receiver),
        }
        Ok(to.writable)
    }

    /// Lets go of what is held and takes nothing more.
    fn cut(&mut self) {
        *self = Self { pipe: None, held: 0, course: Course::Over };
    }
}
