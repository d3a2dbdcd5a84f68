//! One connection: a client, the proxy, and a flow of bytes in each direction. It moves bytes while it can.
//! Its marks say what it waits for; it opens and watches nothing.

use super::pipes::{Pipe, Pipes};
use crate::{
    kernel::{EAGAIN, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP},
    sys::{self, Errno, Fd},
};

/// Most calls of splice(2) in one turn of one flow.
const SPLICES_PER_TURN: usize = 8;

/// Bytes to ask for at once: more than a pipe holds.
const SPLICE_BYTES: usize = 1 << 20;

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Proxy,
}

impl Side {
    /// The epoll data for this end of the connection `token`, which is even.
    pub(super) fn of(self, token: u64) -> u64 {
        token | u64::from(self == Self::Proxy)
    }

    /// Splits such a number into the end and the token.
    pub(super) fn split(number: u64) -> (Self, u64) {
        let side = if number & 1 == 0 { Self::Client } else { Self::Proxy };
        (side, number & !1)
    }
}

/// The result of a turn.
pub(super) enum Outcome {
    /// There is more to do now.
    More,
    /// The connection waits for an event.
    Waits,
    /// Both directions have ended.
    Over,
    /// An end closed before it was done.
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

    /// Records an epoll event of one end.
    pub(super) fn mark(&mut self, side: Side, events: u32) {
        let end = match side {
            Side::Client => &mut self.client,
            Side::Proxy => &mut self.proxy,
        };
        end.readable |= events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR) != 0;
        end.writable |= events & (EPOLLOUT | EPOLLHUP | EPOLLERR) != 0;
        match side {
            // A reset loses what the client sent before, and what was to be sent to it.
            Side::Client => self.broken |= events & EPOLLERR != 0,
            // The proxy takes nothing more. What it sent before can still be read.
            Side::Proxy if events & EPOLLHUP != 0 => self.up.cut(),
            Side::Proxy => {}
        }
    }

    /// Moves bytes without waiting, up to a limit.
    pub(super) fn turn(&mut self, pipes: &mut Pipes) -> Outcome {
        if self.broken {
            return Outcome::Broken;
        }
        let up = match self.up.turn(&mut self.client, &mut self.proxy, pipes) {
            // The proxy reads no more, but may still be sending.
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

    /// Whether the proxy got everything that the client sent.
    pub(super) fn has_sent(&self) -> bool {
        matches!(self.up.course, Course::Over)
    }

    /// Makes the close of the client's socket an orderly end instead of a reset.
    pub(super) fn close_orderly(&self) {
        // If the client is gone, nobody needs the orderly end.
        let _ = sys::linger_off(&self.client.socket);
    }
}

/// A socket, and its readiness as last reported.
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

/// The end that a flow lost.
enum Lost {
    Sender,
    Receiver,
}

/// The state of a flow.
#[derive(Clone, Copy, Default)]
enum Course {
    #[default]
    Open,
    /// The sender has sent everything; the pipe may still hold some of it.
    Ending,
    Over,
}

/// One direction of a connection.
#[derive(Default)]
struct Flow {
    /// Bytes taken from the sender and not yet given to the receiver, and their number.
    pipe: Option<Pipe>,
    held: usize,
    course: Course,
}

impl Flow {
    /// Moves bytes in this direction. Returns whether there is more to do now.
    fn turn(&mut self, from: &mut End, to: &mut End, pipes: &mut Pipes) -> Result<bool, Lost> {
        let mut moved = true;
        for _ in 0..SPLICES_PER_TURN {
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

    /// Takes bytes from the sender into the empty pipe. Returns whether it could.
    fn fill(&mut self, from: &mut End, pipes: &mut Pipes) -> Result<bool, Lost> {
        if !from.readable {
            return Ok(false);
        }
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => none.insert(pipes.take().map_err(|_| Lost::Sender)?),
        };
        match sys::splice(&from.socket, &pipe.into, SPLICE_BYTES) {
            Ok(0) => self.course = Course::Ending,
            Ok(count) => self.held = count,
            Err(Errno(EAGAIN)) => from.readable = false,
            Err(_) => return Err(Lost::Sender),
        }
        Ok(from.readable)
    }

    /// Gives bytes from the pipe to the receiver. Returns whether it could.
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

    /// Drops the bytes in the pipe and takes no more.
    fn cut(&mut self) {
        *self = Self { pipe: None, held: 0, course: Course::Over };
    }
}
