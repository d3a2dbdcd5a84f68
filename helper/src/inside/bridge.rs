//! The bridge to a proxy that is not ours: whoever connects to a TCP socket in the sandbox is connected to one Unix
//! socket of the host. It looks at no byte that passes, runs nothing, and outlives every connection: what a client or
//! the proxy does ends that connection at most.
//!
//! One thread, one edge-triggered epoll. What is ready gets a turn, bounded so that nobody starves others.

mod connection;
mod pipes;
mod table;

use core::mem::ManuallyDrop;

use connection::{Connection, Side};
use pipes::Pipes;
use table::Table;

use crate::{
    Fault,
    channel::Channel,
    control::{BridgeOrder, PROXY, Report, section},
    kernel::{
        AF_UNIX, EAGAIN, ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPOLLET, EPOLLIN, EPOLLOUT,
        EPOLLRDHUP, EPROTO, EpollEvent,
    },
    plan::Plan,
    steps::{self, State},
    sys::{self, Errno, Fd},
};

/// What epoll tells of the control socket and of the listener; other numbers are the table's.
const CONTROL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Events looked at, connections given a turn, and clients let in, before the others are looked at again.
const AT_ONCE: usize = 64;

/// How long to leave alone what was refused for now, in microseconds: at first, and at last.
const SHORTEST_PAUSE: u64 = 1_000;
const LONGEST_PAUSE: u64 = 100_000;

/// The life of a bridge, once its namespaces and its root are there. Ends with the control socket, and everything of it
/// with the process.
pub(crate) fn serve<'p>(
    channel: &Channel,
    plan: &Plan<'p>,
    mut state: State<'p>,
    begun: u64,
) -> Result<(), Fault> {
    // Before the walls, behind which no memory is to be had.
    let table = Table::new().map_err(Fault::init)?;
    steps::carry_out(plan.walls, section::WALLS, &mut state, channel)?;
    // With its descriptors of the root and of the ruleset.
    drop(state);
    let Some((BridgeOrder::Serve { connections }, [listener, ..])) = channel.order().map_err(Fault::init)?
    else {
        return Ok(());
    };
    let listener = listener.ok_or(Fault::init(Errno(EPROTO)))?;
    let bridge = Bridge::new(channel, listener, table, connections).map_err(Fault::init)?;
    // Nothing of it is worth closing before the process ends.
    let mut bridge = ManuallyDrop::new(bridge);
    let took_us = sys::monotonic_us().saturating_sub(begun);
    channel.report(&Report::Ready { took_us }).map_err(Fault::init)?;
    bridge.run().map_err(Fault::init)
}

struct Bridge {
    epoll: Fd,
    listener: Fd,
    table: Table,
    pipes: Pipes,
    /// Connections at a time.
    most: usize,
    /// Whether somebody may wait to be let in.
    knocked: bool,
    /// A client that was let in and cannot be connected yet.
    waiting: Option<Fd>,
    /// How long to leave alone what was refused, and until when; 0 when nothing was.
    pause: u64,
    until: u64,
    /// Whether it ends once nothing is left to pass on.
    finishing: bool,
}

impl Bridge {
    fn new(channel: &Channel, listener: Fd, table: Table, connections: u32) -> Result<Self, Errno> {
        let epoll = sys::epoll()?;
        sys::watch(&epoll, channel.socket(), EPOLLIN | EPOLLRDHUP | EPOLLET, CONTROL)?;
        sys::watch(&epoll, &listener, EPOLLIN | EPOLLET, LISTENER)?;
        let most = connections as usize;
        let (pipes, knocked, waiting) = (Pipes::new()?, true, None);
        let (pause, until, finishing) = (0, 0, false);
        Ok(Self { epoll, listener, table, pipes, most, knocked, waiting, pause, until, finishing })
    }

    /// Until the outside lets go, or has it finish.
    fn run(&mut self) -> Result<(), Errno> {
        let mut events = [EpollEvent { events: 0, data: 0 }; AT_ONCE];
        while !self.has_finished() {
            // Nothing is closed while these are looked at, so that none is about a descriptor of the same number.
            for &EpollEvent { events, data } in sys::watched(&self.epoll, &mut events, self.patience())? {
                match data {
                    // The only order that can follow, so it need not be read.
                    CONTROL if events & EPOLLRDHUP == 0 => self.finish(),
                    CONTROL => return Ok(()),
                    LISTENER => self.knocked = true,
                    token => self.table.mark(token, events),
                }
            }
            for _ in 0..AT_ONCE {
                if !self.table.turn(&mut self.pipes) {
                    break;
                }
            }
            self.let_in();
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.finishing = true;
        self.table.finish();
        // What epoll tells of the listener may come after this.
        self.knocked = true;
    }

    fn has_finished(&self) -> bool {
        self.finishing && !self.knocked && self.waiting.is_none() && self.table.alive() == 0
    }

    /// How long there is nothing to do unless something happens, in milliseconds.
    fn patience(&self) -> i32 {
        let wanted = self.wants_to_let_in();
        if self.table.has_work() || wanted && self.until == 0 {
            return 0;
        }
        if !wanted {
            return -1;
        }
        let left = self.until.saturating_sub(sys::monotonic_us()).div_ceil(1000);
        i32::try_from(left).unwrap_or(-1)
    }

    fn wants_to_let_in(&self) -> bool {
        (self.knocked || self.waiting.is_some()) && self.table.alive() < self.most
    }

    /// Lets in who waits, as long as there is room. Who finds no room stays in the listener's backlog.
    fn let_in(&mut self) {
        if self.until > 0 && sys::monotonic_us() < self.until {
            return;
        }
        self.until = 0;
        for _ in 0..AT_ONCE {
            if !self.wants_to_let_in() || self.until > 0 {
                return;
            }
            if let Some(client) = self.next_client() {
                self.connect(client);
            }
        }
    }

    fn next_client(&mut self) -> Option<Fd> {
        if self.waiting.is_some() {
            return self.waiting.take();
        }
        match sys::accept(&self.listener) {
            Ok(client) => return Some(client),
            Err(Errno(EAGAIN)) => self.knocked = false,
            // It went away again.
            Err(Errno(ECONNABORTED)) => {}
            // Nothing to have more descriptors or memory from: the host has none left.
            Err(_) => self.pause(),
        }
        None
    }

    /// Connects a client to the proxy. One that the proxy refuses is closed, so reset; where the proxy's backlog is full or the host
    /// short of something the client keeps its place, which is before all that come after it.
    fn connect(&mut self, client: Fd) {
        match proxy() {
            Ok(proxy) => {
                self.pause = 0;
                self.add(Connection::new(client, proxy));
            }
            Err(Errno(EAGAIN | EMFILE | ENFILE | ENOBUFS | ENOMEM)) => {
                self.waiting = Some(client);
                self.pause();
            }
            Err(_) => {}
        }
    }

    /// What is ready of a new connection is told like everything that becomes ready later.
    fn add(&mut self, connection: Connection) {
        let Some(token) = self.table.insert(connection) else { return };
        let Some([client, proxy]) = self.table.ends(token) else { return };
        let events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        let watched = sys::watch(&self.epoll, client, events, Side::Client.of(token))
            .and_then(|()| sys::watch(&self.epoll, proxy, events, Side::Proxy.of(token)));
        if watched.is_err() {
            self.table.remove(token);
        }
    }

    /// Leaves the listener and the proxy alone for a while, longer each time until something succeeds.
    fn pause(&mut self) {
        self.pause = self.pause.saturating_mul(2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.until = sys::monotonic_us().saturating_add(self.pause);
    }
}

/// A connection to the proxy.
fn proxy() -> Result<Fd, Errno> {
    let socket = sys::unix_stream()?;
    // `struct sockaddr_un`: family, path, NUL. The root is the working directory.
    let mut address = [0u8; 16];
    let [family, _, ..] = AF_UNIX.to_le_bytes();
    for (to, &from) in address.iter_mut().zip([family, 0].iter().chain(PROXY.to_bytes())) {
        *to = from;
    }
    sys::connect(&socket, &address)?;
    Ok(socket)
}
