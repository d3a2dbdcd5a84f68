//! System calls that only the bridge makes: epoll, connections, pipes, splice(2), and memory for its table.
//! No descriptor created here ever blocks.

use core::mem::MaybeUninit;

use super::*;

/// epoll_create1(2).
pub(crate) fn epoll() -> Result<Fd, Errno> {
    call!(nr::EPOLL_CREATE1, EPOLL_CLOEXEC).map(fd)
}

/// epoll_ctl(EPOLL_CTL_ADD): reports `data` with the `events` that occur on `what`. Ends when `what` is
/// closed.
pub(crate) fn watch(epoll: &Fd, what: &Fd, events: u32, data: u64) -> Result<(), Errno> {
    let event = EpollEvent { events, data };
    call!(nr::EPOLL_CTL, epoll.0, EPOLL_CTL_ADD, what.0, &raw const event).map(drop)
}

/// epoll_wait(2) for that many milliseconds; -1 waits forever.
pub(crate) fn watched<'e>(
    epoll: &Fd,
    events: &'e mut [EpollEvent],
    milliseconds: i32,
) -> Result<&'e [EpollEvent], Errno> {
    let count = match call!(nr::EPOLL_WAIT, epoll.0, events.as_mut_ptr(), events.len(), milliseconds) {
        Err(Errno(EINTR)) => 0,
        count => count?,
    };
    Ok(events.get(..count).unwrap_or_default())
}

/// accept4(2).
pub(crate) fn accept(listener: &Fd) -> Result<Fd, Errno> {
    call!(nr::ACCEPT4, listener.0, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC).map(fd)
}

/// socket(2) of a Unix byte stream. Its connect(2) fails with `EAGAIN` if the peer's backlog is full.
pub(crate) fn unix_stream() -> Result<Fd, Errno> {
    call!(nr::SOCKET, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0).map(fd)
}

/// pipe2(2): the end to read from and the end to write to.
pub(crate) fn pipe() -> Result<[Fd; 2], Errno> {
    let mut ends = [-1i32; 2];
    call!(nr::PIPE2, ends.as_mut_ptr(), O_NONBLOCK | O_CLOEXEC)?;
    Ok(ends.map(Fd))
}

/// splice(2): moves at most `length` bytes; one of the two is a pipe. `EAGAIN` if it would have to wait.
pub(crate) fn splice(from: &Fd, to: &Fd, length: usize) -> Result<usize, Errno> {
    call!(nr::SPLICE, from.0, 0, to.0, 0, length, SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
}

/// shutdown(SHUT_WR): the peer reads to the end.
pub(crate) fn end_writing(socket: &Fd) -> Result<(), Errno> {
    call!(nr::SHUTDOWN, socket.0, SHUT_WR).map(drop)
}

/// setsockopt(SO_LINGER), off. Closing a TCP connection resets it while lingering is on with a time of zero;
/// this ends that.
pub(crate) fn linger_off(socket: &Fd) -> Result<(), Errno> {
    let linger = Linger { on: 0, seconds: 0 };
    call!(nr::SETSOCKOPT, socket.0, SOL_SOCKET, SO_LINGER, &raw const linger, size_of::<Linger>()).map(drop)
}

/// A list that grows in its own mapping, up to a fixed length. Unused pages take no memory.
pub(crate) struct Arena<T: 'static> {
    room: &'static mut [MaybeUninit<T>],
    used: usize,
}

impl<T> Arena<T> {
    /// mmap(2) of room for `most` elements.
    pub(crate) fn new(most: usize) -> Result<Self, Errno> {
        let length = most.checked_mul(size_of::<T>()).ok_or(Errno(EPROTO))?;
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let base = call!(nr::MMAP, 0, length, PROT_READ | PROT_WRITE, flags, -1i32, 0)?;
        let base = ptr::with_exposed_provenance_mut::<MaybeUninit<T>>(base);
        // SAFETY: the mapping is that long, page-aligned, new and never unmapped; no other reference to it
        // exists.
        let room = unsafe { core::slice::from_raw_parts_mut(base, most) };
        Ok(Self { room, used: 0 })
    }

    /// Appends `value`. Returns its index, or `None` if the list is full.
    pub(crate) fn push(&mut self, value: T) -> Option<usize> {
        let index = self.used;
        self.room.get_mut(index)?.write(value);
        self.used = index.saturating_add(1);
        Some(index)
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut T> {
        let slot = self.room.get_mut(..self.used)?.get_mut(index)?;
        // SAFETY: `push` has written every slot below `used`.
        Some(unsafe { slot.assume_init_mut() })
    }
}
