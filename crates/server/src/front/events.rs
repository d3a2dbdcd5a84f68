//! Streams of a command's events on their way to the client. If a host dies, its answers break off; the
//! client is told so in the words of the protocol, and not only by a closed connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};

use crate::e2b::frames::{self, Boundary};
use crate::wire::failure::{Failure, Reason};

/// The body of such a stream. `over` is dropped with it.
pub(crate) struct Events<T> {
    body: Body,
    boundary: Boundary,
    is_over: bool,
    _over: T,
}

impl<T> Events<T> {
    pub(crate) fn new(body: Body, over: T) -> Self {
        Self { body, boundary: Boundary::default(), is_over: false, _over: over }
    }
}

impl<T: Unpin> hyper::body::Body for Events<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            self.boundary.pass(piece);
        }
        match polled {
            // Within a message, nothing can be said any more.
            Poll::Ready(Some(Err(_))) if self.boundary.is_between() => {
                self.is_over = true;
                let mut end = BytesMut::new();
                frames::put_end(&mut end, Some(&Failure::gone(Some(Reason::SessionLost))));
                Poll::Ready(Some(Ok(Frame::data(end.freeze()))))
            }
            polled => polled,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Calls a function when it is dropped.
pub(crate) struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    pub(crate) fn new(call: F) -> Self {
        Self(Some(call))
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|call| call());
    }
}
