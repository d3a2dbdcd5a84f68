//! One command: one message to a worker that waits for it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use kennel_helper::{
    control::{Handed, LONGEST_REQUEST, SCRATCH},
    wire::Field,
};
use zeroize::Zeroizing;

use crate::{compile::request::RequestBuf, inside::Inside, prepared::Bytes};

/// Hands a worker its command and standard descriptors. A request that is too long for a message goes in a memfd.
pub(crate) fn hand_over(worker: &Inside, request: &RequestBuf, stdio: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let (request, scratch) = request.encode();
    // With its number and length; wiped, as the request is.
    let mut message = Zeroizing::new(Vec::with_capacity(request.len() + 16));
    Handed::Inline { request: &request }.put(&mut *message);
    if message.len() <= LONGEST_REQUEST && scratch <= SCRATCH {
        return worker.send(&message, stdio);
    }
    let bytes = Bytes::with_scratch(&request, scratch)?;
    let scratch = u32::try_from(scratch).map_err(|_| io::ErrorKind::ArgumentListTooLong)?;
    message.clear();
    Handed::Memfd { request: bytes.length, scratch }.put(&mut *message);
    let [input, output, error] = stdio;
    worker.send(&message, [input, output, error, bytes.as_fd()])
}
