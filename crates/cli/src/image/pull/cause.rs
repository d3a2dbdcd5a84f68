//! What an error of the HTTP client is about. It wraps its causes several times.

use std::{error::Error as StdError, io};

/// The cause of the causes: those above it only say that there is one.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    kennel::internal::words(cause)
}

/// Whether the other side ended the connection without a word.
pub(super) fn is_cut(error: &(dyn StdError + 'static)) -> bool {
    has_cause(error, &|it| {
        it.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::UnexpectedEof)
    })
}

pub(super) fn is_of_tls(error: &(dyn StdError + 'static)) -> bool {
    has_cause(error, &|it| it.is::<rustls::Error>())
}

/// Whether an error or one of its causes is such a one.
fn has_cause(error: &(dyn StdError + 'static), is_such: &dyn Fn(&(dyn StdError + 'static)) -> bool) -> bool {
    // The source of an error of I/O is the source of the error in it.
    let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    is_such(error)
        || inside.is_some_and(|inside| has_cause(inside, is_such))
        || error.source().is_some_and(|cause| has_cause(cause, is_such))
}
