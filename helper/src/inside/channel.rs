//! The control socket as seen from PID 1: the plan comes in, orders come in, reports go out.

use crate::{
    control::{LONGEST, Order, Report},
    kernel::{self, EPROTO},
    sys::{self, Errno, Fd},
    wire::{Cursor, Field, Sink},
};

/// PID 1's end of the control socket.
pub(crate) struct Channel {
    socket: Fd,
}

impl Channel {
    /// Takes over descriptor 0 and closes every other, so that nothing of the embedding program leaks in and
    /// the next descriptors to arrive are 0, 1, 2 and 3.
    pub(crate) fn adopt() -> Result<Self, Errno> {
        let socket = sys::fcntl(Fd::INHERITED, kernel::F_DUPFD_CLOEXEC, 8)?;
        let number = socket.number();
        sys::close_range(0, number.wrapping_sub(1))?;
        sys::close_range(number.wrapping_add(1), u32::MAX)?;
        Ok(Self { socket })
    }

    /// The socket, to wait on.
    pub(crate) fn socket(&self) -> &Fd {
        &self.socket
    }

    /// Receives stdio and the plan; answers the plan's bytes and its scratch area.
    ///
    /// The descriptors land as 0, 1, 2 (close-on-exec, the payload's stdio) and 3 (the plan).
    pub(crate) fn receive_plan(&self) -> Result<(&'static [u8], &'static mut [usize]), Errno> {
        let mut lengths = [0; 8];
        let (count, descriptors) = sys::receive(&self.socket, &mut lengths)?;
        let mut cursor = Cursor::new(lengths.get(..count).unwrap_or_default());
        let (plan, scratch) = u32::take(&mut cursor).zip(u32::take(&mut cursor)).ok_or(Errno(EPROTO))?;
        if descriptors != [0, 1, 2, 3] {
            return Err(Errno(EPROTO));
        }
        sys::map(Fd::adopt(3), plan as usize, scratch as usize)
    }

    /// Sends a report.
    pub(crate) fn report(&self, report: &Report) -> Result<(), Errno> {
        self.report_with(report, None)
    }

    /// Sends a report and, with it, a descriptor.
    pub(crate) fn report_with(&self, report: &Report, descriptor: Option<&Fd>) -> Result<(), Errno> {
        let mut message = Message { bytes: [0; LONGEST], used: 0 };
        report.put(&mut message);
        sys::send(&self.socket, message.bytes.get_mut(..message.used).unwrap_or_default(), descriptor)
    }

    /// Receives an order; `None` once the outside is gone.
    pub(crate) fn order(&self) -> Result<Option<Order>, Errno> {
        let mut bytes = [0; LONGEST];
        let (count, _) = sys::receive(&self.socket, &mut bytes)?;
        if count == 0 {
            return Ok(None);
        }
        Order::take(&mut Cursor::new(bytes.get(..count).unwrap_or_default())).map(Some).ok_or(Errno(EPROTO))
    }
}

/// A message being written, without an allocator.
struct Message {
    bytes: [u8; LONGEST],
    used: usize,
}

impl Sink for Message {
    /// Bytes beyond the longest message are dropped; the other side refuses a cut message.
    fn append(&mut self, bytes: &[u8]) {
        let end = self.used.saturating_add(bytes.len());
        if let Some(room) = self.bytes.get_mut(self.used..end) {
            room.copy_from_slice(bytes);
            self.used = end;
        }
    }
}
