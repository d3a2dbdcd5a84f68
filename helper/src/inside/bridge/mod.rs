//! The bridge to another program's proxy: it connects each client of a TCP socket in the sandbox to one Unix
//! socket of the host. It inspects no bytes and runs no program. A client or the proxy can end only its own
//! connection, never the bridge.
//!
//! It uses one thread and one edge-triggered epoll. Each ready connection gets a bounded turn, so that none
//! starves the others.

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
    control::{BridgeOrder, PROXY, section},
    kernel::{
        AF_UNIX, EAGAIN, ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPOLLET, EPOLLIN, EPOLLOUT,
        EPOLLRDHUP, EPROTO, EpollEvent,
    },
    plan::Plan,
    steps::{self, State},
    sys::{self, Errno, Fd},
};

/// The epoll data of the control socket and of the listener. Other values are tokens of the table.
const CONTROL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// How many events, turns and new clients to handle before the bridge looks at the others again.
const AT_ONCE: usize = 64;

/// First and longest pause after a refusal, in microseconds.
const SHORTEST_PAUSE: u64 = 1_000;
const LONGEST_PAUSE: u64 = 100_000;

/// Runs a bridge after its namespaces and its root are set up, until the control socket closes. The process
/// then exits with all its descriptors.
pub(crate) fn serve<'p>(
    channel: &Channel,
    plan: &Plan<'p>,
    mut state: State<'p>,
    begun: u64,
) -> Result<(), Fault> {
    // The walls forbid new memory, so allocate the table before them.
    let table = Table::new().map_err(Fault::init)?;
    steps::carry_out(plan.walls, section::WALLS, &mut state, channel)?;
    // Closes the descriptors of the root and of the ruleset.
    drop(state);
    let Some((BridgeOrder::Serve { connections }, [listener, ..])) = channel.order().map_err(Fault::init)?
    else {
        return Ok(());
    };
    let listener = listener.ok_or(Fault::init(Errno(EPROTO)))?;
    let bridge = Bridge::new(channel, listener, table, connections).map_err(Fault::init)?;
    // The process is about to exit, so close nothing.
    let mut bridge = ManuallyDrop::new(bridge);
    channel.ready(begun).map_err(Fault::init)?;
    bridge.run().map_err(Fault::init)
}

struct Bridge {
    epoll: Fd,
    listener: Fd,
    table: Table,
    pipes: Pipes,
    /// Most connections at a time.
    most: usize,
    /// Whether clients may be waiting in the backlog.
    backlog_ready: bool,
    /// A client that was accepted and cannot be connected to the proxy yet.
    waiting: Option<Fd>,
    /// How long to pause after a refusal, and until when; 0 if nothing was refused.
    pause: u64,
    until: u64,
    /// Whether the bridge ends once it has passed everything on.
    finishing: bool,
}

impl Bridge {
    fn new(channel: &Channel, listener: Fd, table: Table, connections: u32) -> Result<Self, Errno> {
        let epoll = sys::epoll()?;
        sys::watch(&epoll, channel.socket(), EPOLLIN | EPOLLRDHUP | EPOLLET, CONTROL)?;
        sys::watch(&epoll, &listener, EPOLLIN | EPOLLET, LISTENER)?;
        let most = connections as usize;
        let (pipes, backlog_ready, waiting) = (Pipes::new()?, true, None);
        let (pause, until, finishing) = (0, 0, false);
        Ok(Self { epoll, listener, table, pipes, most, backlog_ready, waiting, pause, until, finishing })
    }

    /// Serves until the outside closes the control socket, or orders it to finish.
    fn run(&mut self) -> Result<(), Errno> {
        let mut events = [EpollEvent { events: 0, data: 0 }; AT_ONCE];
        while !self.has_finished() {
            // Nothing is closed during this loop, so no event refers to a reused descriptor.
            for &EpollEvent { events, data } in sys::watched(&self.epoll, &mut events, self.timeout())? {
                match data {
                    // Only one order can follow, so the bridge need not read it.
                    CONTROL if events & EPOLLRDHUP == 0 => self.finish(),
                    CONTROL => return Ok(()),
                    LISTENER => self.backlog_ready = true,
                    token => self.table.mark(token, events),
                }
            }
            for _ in 0..AT_ONCE {
                if !self.table.turn(&mut self.pipes) {
                    break;
                }
            }
            self.accept_waiting();
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.finishing = true;
        self.table.finish();
        // An event of the listener may still follow.
        self.backlog_ready = true;
    }

    fn has_finished(&self) -> bool {
        self.finishing && !self.backlog_ready && self.waiting.is_none() && self.table.alive() == 0
    }

    /// How long to wait for events, in milliseconds.
    fn timeout(&self) -> i32 {
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
        (self.backlog_ready || self.waiting.is_some()) && self.table.alive() < self.most
    }

    /// Accepts waiting clients while there is room. The others stay in the listener's backlog.
    fn accept_waiting(&mut self) {
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
            Err(Errno(EAGAIN)) => self.backlog_ready = false,
            // The client went away again.
            Err(Errno(ECONNABORTED)) => {}
            // The host has no descriptors or memory left.
            Err(_) => self.pause(),
        }
        None
    }

    /// Connects a client to the proxy. If the proxy refuses, the bridge closes the client's socket, which
    /// resets it. If the proxy's backlog is full or the host lacks resources, the client stays first in line.
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

    /// epoll reports what is already ready on a new connection, as it does for later events.
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

    /// Pauses the listener and the proxy; longer each time until something succeeds.
    fn pause(&mut self) {
        self.pause = self.pause.saturating_mul(2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.until = sys::monotonic_us().saturating_add(self.pause);
    }
}

/// Opens a connection to the proxy.
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
