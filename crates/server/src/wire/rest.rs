//! Bodies of requests that are answered before they have come: the rest is read and dropped. If the
//! connection were closed instead, the client would find that it was reset, and not the answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::Request;
use bytes::Bytes;
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep, timeout_at};

/// How long a client may go on sending what nobody wants.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks whether somebody still reads.
const LOOK: Duration = Duration::from_millis(20);

/// A body that two hold: one to read it, one to drop what the other leaves.
#[derive(Clone)]
pub(crate) struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    /// Shares the body of a request; `None` if it has none.
    pub(crate) fn of(request: &mut Request<Body>) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let body = Self(Arc::new(Mutex::new(std::mem::take(request.body_mut()))));
        *request.body_mut() = Body::new(body.clone());
        Some(body)
    }

    /// Reads the rest in the background, if there is any.
    pub(crate) fn drop_rest_of(body: Option<Self>) {
        if let Some(body) = body.filter(|body| !body.is_end_stream()) {
            tokio::spawn(body.drop_rest());
        }
    }

    /// Reads the rest, once nobody else does.
    async fn drop_rest(self) {
        let end = Instant::now() + PATIENCE;
        while Arc::strong_count(&self.0) > 1 {
            if Instant::now() > end {
                return;
            }
            sleep(LOOK).await;
        }
        let mut rest = Body::new(self).into_data_stream();
        while let Ok(Some(Ok(_))) = timeout_at(end, rest.next()).await {}
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}
