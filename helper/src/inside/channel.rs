//! The inside's sockets to the outside: they bring plans, orders and requests, and take reports.

use crate::{
    Fault,
    control::{Handed, Handover, LONGEST, LONGEST_REQUEST, LONGEST_ROLE, Report, Role, SCRATCH, request},
    kernel::{self, EPROTO},
    plan::Request,
    sys::{self, Errno, Fd},
    terminal::Wish,
    wire::{Cursor, Field, Sink},
};

/// The inside's end of a socket: of a zygote, a worker, a bridge or a reaper.
pub(crate) struct Channel {
    socket: Fd,
}

/// An order, and the descriptors that came with it.
pub(crate) type Arrived<T> = (T, [Option<Fd>; 3]);

/// What comes to a worker that waits for its command.
pub(crate) enum Received {
    /// The outside is gone.
    Nothing,
    /// The command follows, and gets a terminal.
    Terminal(Wish),
    Command(Command),
}

/// A request, scratch for the pointer arrays of execve(2), and the one or two mappings of the request.
pub(crate) type Command = (Request<'static>, &'static mut [usize], [Range; 2]);

/// Address and length of a mapping. The length is zero if there is none.
pub(crate) type Range = (usize, usize);

impl Channel {
    /// Moves `socket` to a fixed number and closes every other descriptor. Nothing of the embedding program
    /// or of another worker leaks in, and the next descriptors to arrive get the numbers 0, 1, 2 and 3.
    pub(crate) fn adopt(socket: &Fd) -> Result<Self, Errno> {
        let socket = sys::fcntl(socket, kernel::F_DUPFD_CLOEXEC, 8)?;
        let channel = Self { socket };
        channel.close_others()?;
        Ok(channel)
    }

    /// Closes every descriptor but the socket.
    pub(crate) fn close_others(&self) -> Result<(), Errno> {
        let number = self.socket.number();
        sys::close_range(0, number.wrapping_sub(1))?;
        sys::close_range(number.wrapping_add(1), u32::MAX)
    }

    /// Closes every descriptor but the socket and `kept`, which has a higher number.
    pub(crate) fn close_others_but(&self, kept: &Fd) -> Result<(), Errno> {
        let (number, kept) = (self.socket.number(), kept.number());
        sys::close_range(0, number.wrapping_sub(1))?;
        if kept > number.wrapping_add(1) {
            sys::close_range(number.wrapping_add(1), kept.wrapping_sub(1))?;
        }
        sys::close_range(kept.wrapping_add(1), u32::MAX)
    }

    /// A copy of `fd` with a higher number than the socket.
    pub(crate) fn above(&self, fd: &Fd) -> Result<Fd, Errno> {
        sys::fcntl(fd, kernel::F_DUPFD_CLOEXEC, self.socket.number().wrapping_add(1) as usize)
    }

    /// The socket, for poll(2).
    pub(crate) fn socket(&self) -> &Fd {
        &self.socket
    }

    /// Receives the first message: the role of this process, its first steps, and the descriptors that came
    /// with it.
    pub(crate) fn receive_role<'b>(
        &self,
        buffer: &'b mut [u8; LONGEST_ROLE],
    ) -> Result<(Role<'b>, Option<Fd>), Errno> {
        let (count, [first, ..]) = sys::receive(&self.socket, buffer)?;
        Ok((decode(buffer.get(..count))?, (first >= 0).then(|| Fd::adopt(first))))
    }

    /// Receives the plan's bytes, and the extra steps of a one-shot.
    pub(crate) fn receive_plan(&self) -> Result<(&'static [u8], &'static [u8]), Errno> {
        let (Handover::Plan { plan, own }, [first, second, _]) = self.order()?.ok_or(Errno(EPROTO))?;
        Ok((mapped(first, plan)?, mapped(second, own)?))
    }

    /// Receives a command. Its standard descriptors get the numbers 0, 1 and 2.
    ///
    /// Every descriptor below the socket must be closed.
    pub(crate) fn receive_command(&self) -> Result<Received, Fault> {
        let read = |errno| Fault::request(request::READ, errno);
        let (buffer, scratch) = sys::map(None, LONGEST_REQUEST, SCRATCH).map_err(read)?;
        let (count, descriptors) = sys::receive(&self.socket, buffer).map_err(read)?;
        if count == 0 {
            return Ok(Received::Nothing);
        }
        let message: &'static [u8] = buffer;
        let handed = decode::<Handed<'_>>(message.get(..count)).map_err(read)?;
        if let Handed::Terminal { window, modes } = handed {
            return Ok(Received::Terminal(Wish { window, modes }));
        }
        let [first @ .., fourth] = descriptors;
        if first != [0, 1, 2] {
            return Err(read(Errno(EPROTO)));
        }
        // A mapping: its bytes, and the scratch after them.
        let range = |bytes: &[u8], scratch: usize| {
            let aligned = bytes.len().next_multiple_of(align_of::<usize>());
            (bytes.as_ptr().expose_provenance(), aligned.wrapping_add(scratch))
        };
        let (bytes, scratch) = match handed {
            Handed::Inline { request } => (request, scratch),
            Handed::Memfd { request, scratch } => {
                let (bytes, scratch) =
                    sys::map(Some(&Fd::adopt(fourth)), request as usize, scratch as usize).map_err(read)?;
                (&*bytes, scratch)
            }
            Handed::Terminal { .. } => return Err(read(Errno(EPROTO))),
        };
        let second = match handed {
            Handed::Inline { .. } | Handed::Terminal { .. } => (0, 0),
            Handed::Memfd { scratch, .. } => range(bytes, scratch as usize),
        };
        let request = decode(Some(bytes)).map_err(read)?;
        Ok(Received::Command((request, scratch, [range(message, SCRATCH), second])))
    }

    /// Receives an order and the descriptors that came with it. Returns `None` once the outside is gone.
    pub(crate) fn order<T: for<'w> Field<'w>>(&self) -> Result<Option<Arrived<T>>, Errno> {
        let mut bytes = [0; LONGEST];
        let (count, [first, second, third, _]) = sys::receive(&self.socket, &mut bytes)?;
        if count == 0 {
            return Ok(None);
        }
        let descriptor = |number: i32| (number >= 0).then(|| Fd::adopt(number));
        let descriptors = [descriptor(first), descriptor(second), descriptor(third)];
        Ok(Some((decode(bytes.get(..count))?, descriptors)))
    }

    /// Sends a report.
    pub(crate) fn report(&self, report: &Report) -> Result<(), Errno> {
        self.report_with(report, None)
    }

    /// Reports that the set-up, which began then, is done.
    pub(crate) fn ready(&self, begun: u64) -> Result<(), Errno> {
        self.report(&Report::Ready { took_us: sys::monotonic_us().saturating_sub(begun) })
    }

    /// Reports on another process's socket that it could not be made.
    pub(crate) fn refuse(socket: &Fd, errno: Errno) {
        // The outside may have closed the socket already.
        let _ = Self::report_on(socket, &Fault::clone(errno).report(), None);
    }

    /// Sends a report with a descriptor.
    pub(crate) fn report_with(&self, report: &Report, descriptor: Option<&Fd>) -> Result<(), Errno> {
        Self::report_on(&self.socket, report, descriptor)
    }

    /// Sends a report on another process's socket.
    pub(crate) fn report_on(socket: &Fd, report: &Report, descriptor: Option<&Fd>) -> Result<(), Errno> {
        let mut message = Message { bytes: [0; LONGEST], used: 0 };
        report.put(&mut message);
        sys::send(socket, message.bytes.get_mut(..message.used).unwrap_or_default(), descriptor)
    }
}

/// Maps a memfd. Returns no bytes if there is none.
pub(crate) fn mapped(memfd: Option<Fd>, length: u32) -> Result<&'static [u8], Errno> {
    match memfd {
        Some(memfd) => sys::map(Some(&memfd), length as usize, 0).map(|(bytes, _)| &*bytes),
        None => Ok(Default::default()),
    }
}

fn decode<'w, T: Field<'w>>(bytes: Option<&'w [u8]>) -> Result<T, Errno> {
    T::take(&mut Cursor::new(bytes.unwrap_or_default())).ok_or(Errno(EPROTO))
}

/// Builds a message without an allocator.
struct Message {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Sink for Message {
    /// Drops bytes beyond the longest message; the receiver refuses a truncated message.
    fn append(&mut self, bytes: &[u8]) {
        let end = self.used.saturating_add(bytes.len());
        if let Some(room) = self.bytes.get_mut(self.used..end) {
            room.copy_from_slice(bytes);
            self.used = end;
        }
    }
}
